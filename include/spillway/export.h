// SPDX-License-Identifier: Apache-2.0
//
// SPILLWAY_EXPORT marks the symbols that the shared library exports; all others are hidden.

#ifndef SPILLWAY_EXPORT_H_
#define SPILLWAY_EXPORT_H_

#define SPILLWAY_EXPORT __attribute__((visibility("default")))

#endif  // SPILLWAY_EXPORT_H_
