# SPDX-License-Identifier: MIT
"""Colibri in the running image: exact answers, locked memory, closed sandbox, healthy service.

Everything is compared with the golden results that lie beside the model in the image, so the case
needs nothing but the image. Messages go to the system log in production builds: results are read
from standard output alone.
"""

import json
import shlex

from oeqa.core.decorator.depends import OETestDepends
from oeqa.runtime.case import OERuntimeTestCase
from oeqa.runtime.decorator.package import OEHasPackage

CONFIGURATION = "/etc/colibri/colibri.conf"
HEALTH = "/run/colibri/health.json"
SOCKET = "/run/colibri/colibri.sock"
SECONDS = 300
BLOCK = 4096


class ColibriTest(OERuntimeTestCase):
    """The model that the service loads, and its golden results."""

    def command(self, text, status=0):
        """Output of a shell command that ends with the exit code `status`."""
        got, output = self.target.run(text, SECONDS)
        self.assertEqual(got, status, msg="%s: %s" % (text, output))
        return output

    def setUp(self):
        """Where the model is, and what it must answer."""
        self.model = self.command(". %s; echo $COLIBRI_MODEL" % CONFIGURATION).strip()
        golden = json.loads(self.command("cat %s.golden.json" % self.model.removesuffix(".colibri")))
        self.root = golden["root"]
        self.cases = golden["cases"]
        self.case = next(case for case in self.cases if case["kv"] == "f16" and case["prompt"] and not case["chat"])

    def pids(self):
        """Process id of the server, as a list of one."""
        return self.command("pidof colibrictl").split()

    def status_lines(self, name):
        """One value for each thread of the server."""
        pid = self.pids()[0]
        return self.command("sed -n 's/^%s:[[:space:]]*//p' /proc/%s/task/*/status" % (name, pid)).split("\n")

    def wait_for_service(self):
        """The gate verifies the model first."""
        self.command("i=0; until [ -S %s ] || [ $i -ge 120 ]; do i=$((i + 1)); sleep 1; done; [ -S %s ]" % (SOCKET, SOCKET))

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-tools"])
    def test_the_selftest_passes_on_every_instruction_set(self):
        output = self.command("colibrictl selftest")
        for line in output.strip().splitlines():
            self.assertRegex(line, r"^selftest: \w+ ok")

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-tools"])
    def test_tokens_and_logits_are_exactly_the_golden_ones(self):
        # With one thread: emulated cores that share real ones wait long for each other.
        for case in self.cases:
            ids = ",".join(str(number) for number in case["prompt_ids"])
            output = self.command(
                "colibrictl run %s --ids %s -n %d --kv %s --threads 1 --ignore-end -q --print-ids --logits-sha256 2>&1" % (
                    self.model, ids, case["n"], case["kv"]))
            printed = [line for line in output.splitlines() if line.startswith(("ids: ", "logits-sha256: "))]
            self.assertEqual(printed, [
                "ids: " + " ".join(str(number) for number in case["ids"]), "logits-sha256: " + case["logits_sha256"]])

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-tools"])
    def test_every_instruction_set_and_thread_count_gives_the_golden_logits(self):
        case = min(self.cases, key=lambda case: len(case["prompt_ids"]))
        ids = ",".join(str(number) for number in case["prompt_ids"])
        self.command("colibrictl selftest %s --ids %s -n %d --kv %s --expect-sha256 %s" % (
            self.model, ids, case["n"], case["kv"], case["logits_sha256"]))

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-tools"])
    def test_a_flipped_bit_is_refused(self):
        # Only what a busybox or coreutils has: no dd conv=, no head -c, and od takes its options in one of them.
        blocks = int(self.command("wc -c < %s" % self.model)) // 2 // BLOCK
        at = blocks * BLOCK
        old = int(self.command("hexdump -s %d -n 1 -e '1/1 \"%%u\"' %s 2>/dev/null || od -An -tu1 -j %d -N 1 %s" % (
            at, self.model, at, self.model)))
        self.command("{ dd if=%s bs=%d count=%d 2>/dev/null; printf '\\%03o'; tail -c +%d %s; } > /tmp/bent.colibri" % (
            self.model, BLOCK, blocks, old ^ 1, at + 2, self.model))
        self.command("[ $(wc -c < /tmp/bent.colibri) = $(wc -c < %s) ]" % self.model)
        self.command("colibrictl verify /tmp/bent.colibri", status=3)
        self.command("rm /tmp/bent.colibri")

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-service"])
    def test_the_gate_has_found_the_machine_healthy(self):
        self.wait_for_service()
        health = json.loads(self.command("cat %s" % HEALTH))
        self.assertIn(health["status"], ("ok", "warn"))
        self.assertEqual(health["exit_code"], 0)
        self.assertEqual(health["root"], self.root)
        golden = [check["status"] for check in health["checks"] if check["name"] == "golden"]
        self.assertEqual(golden, ["ok"])

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-service"])
    def test_the_service_gives_the_golden_answer(self):
        self.wait_for_service()
        output = self.command("colibrictl ask %s -p %s --tokens %d --json" % (
            SOCKET, shlex.quote(self.case["prompt"]), self.case["n"]))
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        self.assertEqual("".join(line.get("text", "") for line in lines), self.case["text"])
        self.assertEqual(lines[-1]["logits_sha256"], self.case["logits_sha256"])

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-service"])
    def test_the_memory_of_the_service_is_locked(self):
        self.wait_for_service()
        pid = self.pids()[0]
        locked = int(self.command("sed -n 's/^VmLck:[[:space:]]*\\([0-9]*\\) kB/\\1/p' /proc/%s/status" % pid)) * 1024
        self.assertGreaterEqual(locked, int(self.command("wc -c < %s" % self.model)) // 2)

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-service"])
    def test_every_thread_of_the_service_is_in_the_sandbox(self):
        self.wait_for_service()
        for name, value in (("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0" * 16)):
            self.assertEqual(set(self.status_lines(name)), {value}, msg=name)

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-ptest"])
    def test_programs_and_processes_are_refused_inside_the_sandbox(self):
        output = self.command("/usr/lib/colibri/ptest/sandbox_probe %s" % self.model)
        self.assertNotIn("FAIL", output)

    @OETestDepends(["ssh.SSHTest.test_ssh"])
    @OEHasPackage(["colibri-tools"])
    def test_the_macros_of_production_are_listed_when_they_are_forced(self):
        forced = self.command("colibrictl info | sed -n 's/^ *forced *//p'").split()
        if "packagegroup-colibri-production" in self.tc.image_packages:
            for macro in ("SECURE_MODE", "NO_LOGGING", "VERIFY_MODEL_HASH", "RESTRICTED_SYSCALLS"):
                self.assertIn("COLIBRI_" + macro, forced)
