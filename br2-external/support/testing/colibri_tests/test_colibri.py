# SPDX-License-Identifier: MIT
"""The QEMU image boots and gives the golden tokens, inside its sandbox and its memory plan.

    cd BUILDROOT && PYTHONPATH=EXTERNAL/support/testing \
        support/testing/run-tests -d DL -o OUT -k colibri_tests.test_colibri
"""

import json
import shlex

from colibri_tests import image

SERVER = "/run/colibri/colibri.sock"


class TestColibriAarch64(image.ImageTest):
    def test_run(self):
        self.boot()
        golden, case = image.golden_results()

        # The service, which nobody but the init script has started, gives exactly the golden answer.
        ask = f"colibrictl ask {SERVER} -p {shlex.quote(case['prompt'])} --tokens {case['n']} --json"
        answer = [json.loads(line) for line in self.output(ask).splitlines() if line.startswith("{")]
        self.assertEqual("".join(line.get("text", "") for line in answer), case["text"])
        self.assertEqual(answer[-1]["logits_sha256"], case["logits_sha256"])

        # Sandbox, locked memory, user of its own.
        status = self.output("cat /proc/$(pidof colibrictl)/status")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        self.assertEqual(fields["Seccomp"].strip(), "2")
        self.assertEqual(fields["NoNewPrivs"].strip(), "1")
        self.assertEqual(int(fields["CapEff"], 16), 0)
        self.assertGreater(int(fields["VmLck"].split()[0]), 0)
        self.assertNotEqual(fields["Uid"].split()[0], "0")

        # Health gate and memory plan.
        health = json.loads(self.output("cat /run/colibri/health.json"))
        self.assertEqual(health["exit_code"], 0)
        self.assertEqual(health["root"], golden["root"])
        self.assertGreater(health["peak_bytes"], 0)
        self.assertLessEqual(health["peak_bytes"], health["plan_bytes"])
        checks = {check["name"]: check["status"] for check in health["checks"]}
        for name in ("model", "golden", "lock", "seccomp", "read-ahead"):
            self.assertEqual(checks[name], "ok", name)

        # What the build forces, and what cannot be written.
        info = self.output(f"colibrictl info {image.MODEL}")
        for name in ("SECURE_MODE", "NO_LOGGING", "VERIFY_MODEL_HASH", "RESTRICTED_SYSCALLS"):
            self.assertIn(f"COLIBRI_{name}", info)
        for place in ("/", "/models"):
            _, code = self.emulator.run(f"touch {place}/new 2>/dev/null")
            self.assertNotEqual(code, 0, f"{place} can be written")
        self.assertRunOk("zcat /proc/config.gz | grep -x CONFIG_SECCOMP_FILTER=y")
