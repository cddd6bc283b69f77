// SPDX-License-Identifier: Apache-2.0
//
// SPILLWAY_EXPORT marks what the shared library shows; everything else in it is hidden.

#ifndef SPILLWAY_EXPORT_H_
#define SPILLWAY_EXPORT_H_

#define SPILLWAY_EXPORT __attribute__((visibility("default")))

#endif  // SPILLWAY_EXPORT_H_
