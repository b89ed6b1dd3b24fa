/* SPDX-License-Identifier: MIT */
/* The commands of colibrictl. argv[0] is the first argument behind the name; exit code out. */
#ifndef CTL_COMMANDS_H
#define CTL_COMMANDS_H

int ctl_command_run(int argc, char *const *argv);
int ctl_command_snapshot(int argc, char *const *argv);
int ctl_command_doctor(int argc, char *const *argv);
int ctl_command_health(int argc, char *const *argv);
/* Before anything else can fail: the result that an earlier check left where this one puts its own. */
void ctl_health_forget(int argc, char *const *argv);
int ctl_command_info(int argc, char *const *argv);
int ctl_command_selftest(int argc, char *const *argv);
int ctl_command_ask(int argc, char *const *argv);
int ctl_command_serve(int argc, char *const *argv);
int ctl_command_install(int argc, char *const *argv);
int ctl_command_verify(int argc, char *const *argv);
int ctl_command_bench(int argc, char *const *argv);
int ctl_command_test(int argc, char *const *argv);

#endif
