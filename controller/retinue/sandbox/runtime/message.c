#include "message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Untouched pages of it cost nothing. */
static char packet[WIRE_PACKET_MAX];

static ssize_t receive_packet(int sock, struct message *m) {
    char control[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
    struct iovec space = {packet, sizeof packet};
    struct msghdr header = {.msg_iov = &space, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(sock, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0) return size;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        m->fd_count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(m->fds, CMSG_DATA(c), (size_t)m->fd_count * sizeof(int));
    }
    return size;
}

static ssize_t read_file(struct message *m) {
    int fd = message_take_fd(m, 0);
    struct stat found;
    ssize_t size = -1;
    if (fd < 0) return -1;
    if (fstat(fd, &found) == 0 && found.st_size <= WIRE_FILE_MAX && (m->file = malloc((size_t)found.st_size + 1)))
        size = pread(fd, m->file, (size_t)found.st_size, 0);
    close(fd);
    memmove(m->fds, m->fds + 1, sizeof(int) * (size_t)--m->fd_count);
    return size;
}

static int parse_fields(struct message *m, char *at, char *end) {
    m->fields = calloc(m->field_count + 1, sizeof *m->fields);
    m->lengths = calloc(m->field_count + 1, sizeof *m->lengths);
    if (!m->fields || !m->lengths) return -1;
    for (uint32_t i = 0; i < m->field_count; i++) {
        uint32_t length;
        if ((size_t)(end - at) < sizeof length + 1) return -1;
        memcpy(&length, at, sizeof length);
        at += sizeof length;
        if (length >= (size_t)(end - at) || at[length]) return -1;
        m->fields[i] = at;
        m->lengths[i] = length;
        at += length + 1;
    }
    return 0;
}

static int parse_message(struct message *m, char *bytes, size_t size) {
    struct wire_header header;
    if (size < sizeof header) return -1;
    memcpy(&header, bytes, sizeof header);
    size_t numbers_size = (size_t)header.number_count * sizeof(uint64_t);
    if (header.number_count > 256 || header.field_count > size || size < sizeof header + numbers_size) return -1;
    m->kind = header.kind;
    m->id = header.id;
    m->number_count = header.number_count;
    m->field_count = header.field_count;
    m->numbers = malloc(numbers_size + 1);
    if (!m->numbers) return -1;
    memcpy(m->numbers, bytes + sizeof header, numbers_size);
    return parse_fields(m, bytes + sizeof header + numbers_size, bytes + size);
}

int message_receive(int sock, struct message *m) {
    memset(m, 0, sizeof *m);
    ssize_t size = receive_packet(sock, m);
    if (size < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    if (size == 0) return 0;
    char *bytes = packet;
    uint32_t kind = 0;
    memcpy(&kind, packet, size < (ssize_t)sizeof kind ? (size_t)size : sizeof kind);
    if (kind == WIRE_IN_FILE) {
        size = read_file(m);
        bytes = m->file;
    }
    /* Only the host writes here: what cannot be read is a bug of ours, and going on would be guessing. */
    if (size < 0 || parse_message(m, bytes, (size_t)size)) {
        message_release(m);
        return 0;
    }
    return 1;
}

void message_release(struct message *m) {
    for (int i = 0; i < m->fd_count; i++)
        if (m->fds[i] >= 0) close(m->fds[i]);
    free(m->numbers);
    free(m->fields);
    free(m->lengths);
    free(m->file);
    memset(m, 0, sizeof *m);
}

uint64_t message_number(const struct message *m, uint32_t index) {
    return index < m->number_count ? m->numbers[index] : 0;
}

const char *message_field(const struct message *m, uint32_t index) {
    return index < m->field_count ? m->fields[index] : "";
}

int message_take_fd(struct message *m, int index) {
    if (index >= m->fd_count) return -1;
    int fd = m->fds[index];
    m->fds[index] = -1;
    return fd;
}

int answer_send(int sock, const struct answer *a, int fd, int flags) {
    struct wire_header header = {a->kind, a->id, a->number_count, a->text ? 1 : 0};
    uint32_t length = a->text ? (uint32_t)strlen(a->text) : 0;
    struct iovec parts[4] = {
        {&header, sizeof header},
        {(void *)a->numbers, a->number_count * sizeof *a->numbers},
        {&length, sizeof length},
        {(void *)a->text, length + 1},
    };
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = a->text ? 4 : 2};
    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(sock, &m, MSG_NOSIGNAL | flags);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}
