/* Packets of wire.h: received and taken apart, put together and sent. Decides nothing. */
#ifndef RETINUE_MESSAGE_H
#define RETINUE_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

struct message {
    uint32_t kind;
    uint32_t id;
    uint32_t number_count;
    uint32_t field_count;
    uint64_t *numbers;
    char **fields;         /* NUL-terminated strings, then NULL */
    uint32_t *lengths;
    int fds[WIRE_FDS_MAX]; /* close-on-exec; -1 once taken */
    int fd_count;
    char *file;            /* what IN_FILE was read into, or NULL */
};

/* 1: a message; 0: the peer is gone, for good; -1: nothing there now. The message is valid until the next call. */
int message_receive(int sock, struct message *m);
/* Closes what was not taken and frees the rest. */
void message_release(struct message *m);
uint64_t message_number(const struct message *m, uint32_t index);
/* "" when there is no such field. */
const char *message_field(const struct message *m, uint32_t index);
/* The descriptor, which is the caller's from now on; -1 when there is none. */
int message_take_fd(struct message *m, int index);

struct answer {
    uint32_t kind;
    uint32_t id;
    uint32_t number_count;
    uint64_t numbers[8];
    const char *text;      /* one field, or NULL */
};

/* Sends with a descriptor, or -1 for none. 0, or -1 with errno: EAGAIN when flags say MSG_DONTWAIT and the host does
 * not read. */
int answer_send(int sock, const struct answer *a, int fd, int flags);

#endif
