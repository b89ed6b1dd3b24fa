// SPDX-License-Identifier: MIT
/*
 * Plugin for QEMU's user-mode emulation: how many instructions the guest executed, by function.
 *
 *     qemu-aarch64 -plugin count_instructions.so,output=FILE PROGRAM
 *
 * Debian packages no header of the plugin interface; what is used of version 1 is declared here, after its
 * documentation (docs/devel/tcg-plugins.rst of QEMU). The counts are exact for a guest with one thread:
 * every block adds its length when it is entered. FILE gets a line per block that was translated: count, name
 * of the function ("?" without symbols); the reader adds them up.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { ADD_U64 = 0 };
typedef uint64_t plugin_id;
typedef void translated(plugin_id id, struct qemu_plugin_tb *block);
typedef void ended(plugin_id id, void *data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, translated *callback);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation, void *pointer,
                                                     uint64_t value);
extern void qemu_plugin_register_atexit_cb(plugin_id id, ended *callback, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
extern const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *instruction);

EXPORT int qemu_plugin_version = 1;
EXPORT int qemu_plugin_install(plugin_id id, const void *info, int count, char **arguments);

struct block {
    struct block *next;
    const char *function;
    uint64_t executed;
};

static struct block *blocks;
static char path[4096];

static void on_translated(plugin_id id, struct qemu_plugin_tb *translation)
{
    struct block *block = calloc(1, sizeof *block);

    (void)id;
    if (block == NULL) {
        abort(); /* a count that leaves something out is worse than none */
    }
    block->function = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(translation, 0));
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_inline(translation, ADD_U64, &block->executed,
                                             qemu_plugin_tb_n_insns(translation));
}

static void on_exit(plugin_id id, void *data)
{
    FILE *file = fopen(path, "w");
    const struct block *block;

    (void)id;
    (void)data;
    if (file == NULL) {
        return;
    }
    for (block = blocks; block != NULL; block = block->next) {
        (void)fprintf(file, "%llu %s\n", (unsigned long long)block->executed,
                      block->function == NULL || block->function[0] == '\0' ? "?" : block->function);
    }
    (void)fclose(file);
}

int qemu_plugin_install(plugin_id id, const void *info, int count, char **arguments)
{
    static const char option[] = "output=";
    const size_t skip = sizeof option - 1;

    (void)info;
    if (count != 1 || strncmp(arguments[0], option, skip) != 0 || strlen(arguments[0]) - skip >= sizeof path) {
        (void)fprintf(stderr, "count_instructions: give output=FILE and nothing else\n");
        return -1;
    }
    (void)strcpy(path, arguments[0] + skip);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
    qemu_plugin_register_atexit_cb(id, on_exit, NULL);
    return 0;
}
