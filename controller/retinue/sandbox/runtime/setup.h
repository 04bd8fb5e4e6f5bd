#ifndef RETINUE_SETUP_H
#define RETINUE_SETUP_H

struct message;

/* Turns the caller, pid 1 of fresh namespaces, into a confined one whose root is the image: see the order in setup.c.
 * A step that fails is reported and ends the process.
 */
void setup_sandbox(const struct message *config, unsigned lower_count);

#endif
