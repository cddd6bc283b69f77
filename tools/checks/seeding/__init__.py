# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/checks/seeded_faults."""
