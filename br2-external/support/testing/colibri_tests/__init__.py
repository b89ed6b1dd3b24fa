# SPDX-License-Identifier: MIT
"""Runtime tests of the images, for Buildroot's support/testing/run-tests."""
