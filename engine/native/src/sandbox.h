/* SPDX-License-Identifier: MIT */
/* What the rest of the library must know about the sandbox: when to leave files alone. */
#ifndef CB_SANDBOX_H
#define CB_SANDBOX_H

/* 1 in phase steady: opening a file or locking memory would end the process, or fail. */
int cb_sandbox_closed(void);

#endif
