/* SPDX-License-Identifier: MIT */
/*
 * Putting a file into a folder so that a crash, a kill or a power cut leaves the old file or the new
 * one: the steps of `colibrictl install`. One installer at a time works in a folder (flock), so the
 * temporary files have fixed names, and one that is there when the lock is held is a leftover.
 */
#ifndef CTL_PLACING_H
#define CTL_PLACING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define CTL_NAME_BYTES 256u
#define CTL_MAX_NAME 200u /* of a target: room for what the temporary names add */
#define CTL_GOLDEN_SUFFIX ".golden.json"

struct ctl_place {
    const char *target; /* as it was given, for messages */
    char folder_path[4096];
    int folder;                /* descriptor, locked */
    char name[CTL_NAME_BYTES]; /* of the file in the folder */
    char temporary[CTL_NAME_BYTES];
    char golden[CTL_NAME_BYTES]; /* empty: the file is no model and has no golden results */
    char golden_temporary[CTL_NAME_BYTES];
    char golden_replaced[CTL_NAME_BYTES]; /* the old golden results, while the model is replaced */
    mode_t mode;     /* of a new file */
    struct stat old; /* of the file that is replaced */
    bool replaces, has_golden, has_replaced; /* what is there: the target, golden results, those set aside */
};

/* Every function: 0, or the exit code after printing why. */

/* Refuses an output that is one of the files that are read, under whatever name. `inputs` may hold NULL
 * and "-". */
int ctl_output_differs(const char *command, const char *output, const char *const *inputs, size_t count);

/* Before long work: whether a file could be put there at its end. NULL and "-": nothing to look at. */
int ctl_place_check(const char *target);

/* Splits, opens and locks the folder of `target`, looks at what is there, removes leftovers. From here
 * on SIGINT, SIGTERM and SIGHUP remove the temporary files and end the process with code 1. `has_golden`:
 * the golden results of its name belong to the target and go with the old one. */
int ctl_place_open(struct ctl_place *place, const char *target, bool has_golden, mode_t mode);
/* Golden results that an interrupted run has set aside get their name again when they are those of the file
 * that is there (`theirs`) and none are; else they are of a model that is gone, and are removed. */
int ctl_place_settle_replaced(struct ctl_place *place, const char *target, bool theirs);
/* Refuses when fewer than `bytes` are free. */
int ctl_place_check_space(const struct ctl_place *place, const char *target, uint64_t bytes);
/* A new temporary file of that size, open for writing, readable by nobody else yet. */
int ctl_place_create(const struct ctl_place *place, const char *temporary, uint64_t bytes, int *fd);
/* Owner, group and permissions: those of the file that is replaced, else `mode`. No sandbox allows it. */
int ctl_place_own(const struct ctl_place *place, const char *thing, int fd);
int ctl_place_sync(const char *thing, int fd);
/* Both. */
int ctl_place_settle(const struct ctl_place *place, const char *thing, int fd);
/* Old golden results aside, model in place, new golden results in place; fsync of the folder after
 * each, signals held back. So golden results never lie beside a model that is not theirs. When the model
 * cannot be replaced, the old golden results get their name back. */
int ctl_place_commit(const struct ctl_place *place, bool with_golden);
/* Removes what is left of the temporary files, unlocks. */
void ctl_place_close(struct ctl_place *place);

/* NAME.golden.json for NAME.colibri; `out` has CTL_NAME_BYTES. */
void ctl_golden_name(const char *name, char *out);
/* "folder/name"; false when it does not fit. */
bool ctl_join(const char *folder, const char *name, char *out, size_t capacity);

#endif
