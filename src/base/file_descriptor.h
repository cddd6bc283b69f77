// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that are never 0, 1 or 2. In a process that was started with a standard stream closed
// the next file opened takes its number, and whoever prints then writes into that file.

#ifndef SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_
#define SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_

namespace spillway::base {

// Takes what open() and its like returned: the same descriptor if it is 3 or more, else another for
// the same file, close-on-exec, the one given being closed. Negative stays negative; on failure -1
// with errno set.
int AboveStandardStreams(int fd);

}  // namespace spillway::base

#endif  // SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_
