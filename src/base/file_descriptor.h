// SPDX-License-Identifier: Apache-2.0
//
// Keeps file descriptors away from 0, 1 and 2. If a process is started with a standard stream
// closed, the next file that it opens gets that stream's number, and code that prints then writes
// into the file.

#ifndef SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_
#define SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_

namespace spillway::base {

// Takes the result of open() or a similar call. Returns it unchanged if it is negative or at least
// 3. Otherwise closes it and returns another descriptor of the same file, with close-on-exec set.
// On failure returns -1 and sets errno.
int AboveStandardStreams(int fd);

}  // namespace spillway::base

#endif  // SPILLWAY_SRC_BASE_FILE_DESCRIPTOR_H_
