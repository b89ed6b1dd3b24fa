// SPDX-License-Identifier: MIT
// colibri.h is the first and only include: it must compile alone as C++, with C linkage.
#include "colibri.h"

static_assert(sizeof(colibri_error) == 272, "the same layout as in C");

extern "C" const char *(*const header_test_version)(void);
extern "C" const char *(*const header_test_version)(void) = colibri_version;

int header_test_cpp();
int header_test_cpp()
{
    colibri_error error = {};
    return error.code;
}
