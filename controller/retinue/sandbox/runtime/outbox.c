#include "outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "message.h"

struct kept {
    struct kept *next;
    struct answer answer;
    int fd;
};

static int to;
static struct kept *first;
static struct kept **last = &first;

void outbox_open(int sock) {
    to = sock;
}

int outbox_is_empty(void) {
    return first == NULL;
}

void outbox_send(const struct answer *a, int fd) {
    if (!first && (answer_send(to, a, fd, MSG_DONTWAIT) == 0 || errno != EAGAIN)) return;
    struct kept *k = malloc(sizeof *k);
    if (!k) _exit(1); /* An answer that is lost is a host that waits for ever. */
    *k = (struct kept){NULL, *a, fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3)};
    *last = k;
    last = &k->next;
}

void outbox_flush(void) {
    while (first) {
        struct kept *k = first;
        if (answer_send(to, &k->answer, k->fd, MSG_DONTWAIT) && errno == EAGAIN) return;
        first = k->next;
        if (!first) last = &first;
        if (k->fd >= 0) close(k->fd);
        free(k);
    }
}
