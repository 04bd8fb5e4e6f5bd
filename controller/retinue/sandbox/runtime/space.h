#ifndef RETINUE_SPACE_H
#define RETINUE_SPACE_H

struct message;

/* Runs a node space for the host at the other end of descriptor 0; returns when it has ended. */
int space_main(void);
/* Answers requests of the host, and reports children that ended, until the host is gone; then the process ends. */
void serve(int sock, void (*obey_one)(struct message *));

#endif
