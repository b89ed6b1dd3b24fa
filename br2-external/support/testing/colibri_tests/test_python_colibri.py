# SPDX-License-Identifier: MIT
"""The Python package runs a model in the image and gives the golden tokens.

    cd BUILDROOT && PYTHONPATH=EXTERNAL/support/testing \
        support/testing/run-tests -d DL -o OUT -k colibri_tests.test_python_colibri
"""

import shlex

from colibri_tests import image


class TestPythonColibriAarch64(image.ImageTest):
    config = image.defconfig("BR2_PACKAGE_PYTHON3=y", "BR2_PACKAGE_PYTHON_COLIBRI=y")

    def test_run(self):
        self.boot()
        _, case = image.golden_results()

        # The command, with the library that the package brings.
        prompt, count = shlex.quote(case["prompt"]), case["n"]
        run = f"colibri run {image.MODEL} -p {prompt} -n {count} --ignore-end --print-ids --logits-sha256"
        said = self.output(f"{run} 2>&1 >/dev/null")
        self.assertIn(" ".join(map(str, case["ids"])), said.replace(",", " "))
        self.assertIn(case["logits_sha256"], said)

        # The module, in a program.
        program = (
            "from colibri.engine import Engine, build_forced; e = Engine('{0}', threads=2); s = e.session(); "
            "s.append({1}); print(list(s.generate({2}, stop_at_end=False)), build_forced())"
        ).format(image.MODEL, case["prompt_ids"], count)
        said = self.output(f"python3 -c {shlex.quote(program)}")
        self.assertIn(str(case["ids"]), said)
        self.assertIn("COLIBRI_SECURE_MODE", said)
        self.assertIn(image.version(), self.output("colibri --version"))
