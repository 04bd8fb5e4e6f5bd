/* Answers to a host that may be busy: sent at once, or kept in order until it reads again. */
#ifndef RETINUE_OUTBOX_H
#define RETINUE_OUTBOX_H

struct answer;

void outbox_open(int sock);
/* Keeps a copy of the answer and of the descriptor if it cannot be sent now; text must be a constant. */
void outbox_send(const struct answer *a, int fd);
void outbox_flush(void);
int outbox_is_empty(void);

#endif
