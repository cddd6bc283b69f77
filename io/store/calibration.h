// SPDX-License-Identifier: Apache-2.0
//
// Measures a store's device for a few seconds: the request size and the queue depths that suit it,
// and the rates that they give. The store keeps the result as the device's profile; PageIo and the
// I/O engine's queues use it.
//
// One idea: choose the smallest depth that serves a run as well as any. In a shallower queue,
// everything that comes later waits less. But a run is less even than a calibration: a thread that
// hashes or sleeps submits nothing for a while, and a shallow queue runs empty. So RunRates takes
// off each rate what a run would lose in such gaps, and the smallest depth within 3% of the best is
// chosen. Without that, and without Smoothed, the luck of one sample decides among depths that a
// calibration cannot tell apart. No queue holds more than 150 ms of work, but for the shortest,
// because an arriving read waits for everything in the queue. Smaller requests cost more CPU time,
// and larger ones leave less waiting work that a later request can overtake. So requests have
// kDefaultRequestBytes unless another size is clearly faster over reads, writes and both together.
//
// The depths end at kMaxQueueDepth requests or at a quarter of the pinned budget, whichever is
// less. Memory does not grow with them: where a queue is longer than memory_bytes, several of its
// transfers share memory. Mapping memory takes 0.1 s/GiB, but 2 to 4 s/GiB on a virtual machine
// whose host has not backed its pages yet. Transfers that share memory are as fast as others while
// the memory is larger than a processor's caches (src/adr/0013*).

#ifndef SPILLWAY_IO_STORE_CALIBRATION_H_
#define SPILLWAY_IO_STORE_CALIBRATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/io_engine.h"
#include "io/store/store.h"

namespace spillway::io {

inline constexpr uint64_t kLeastCalibrationBytes = uint64_t{16} << 20;
// kMaxQueueDepth requests of the largest size, 2 MiB.
inline constexpr uint64_t kMostCalibrationBytes = uint64_t{2} << 30;

struct CalibrationOptions {
  // Size of the unnamed, temporary file; at least kLeastCalibrationBytes. On a slow device less is
  // written, and the later steps use only that part.
  uint64_t file_bytes = uint64_t{512} << 20;
  // The most bytes under way, which bounds the depths that are tried; at least
  // kLeastCalibrationBytes.
  uint64_t queue_bytes = kMostCalibrationBytes;
  // Memory for the transfers, of which at most queue_bytes are used; at least 2 MiB.
  uint64_t memory_bytes = uint64_t{512} << 20;
  absl::Duration limit = absl::Seconds(6);  // a short one drops repetitions, then settings
  absl::Duration sample = absl::Milliseconds(60);
  // True: ends soon, with Cancelled, as it does if the thread's interrupt wants that.
  const std::atomic<bool>* stop = nullptr;
};

// Measures the device that `folder` lies on, through `engine`. Afterwards the engine's queues for
// `device` have the depths of the profile. Takes five or six seconds: the time to map the memory,
// options.limit, and the time of the requests that are in flight when a step's time is over.
// REQUIRES: nothing is in flight and no buffer is announced, because all buffers are removed.
// ResourceExhausted if there is no room for the file or no memory; DeadlineExceeded if nothing
// could be measured within the limit; else the I/O's status.
absl::StatusOr<DeviceProfile> Calibrate(const std::string& folder, IoEngine& engine,
                                        uint16_t device, const CalibrationOptions& options = {});

// Measures each device of the store that has no profile, or every device if `again`, and records
// the profiles in the store. Then sets the engine's queues as ApplyProfiles does. `folders` are the
// store's. Each measurement has the duration, requirements and errors of Calibrate. If one fails,
// the other devices are measured all the same, unless it is Cancelled; the first error is returned.
absl::Status CalibrateStore(Store& store, std::span<const std::string> folders, IoEngine& engine,
                            bool again, const CalibrationOptions& options = {});

QueueDepths DepthsOf(const DeviceProfile& profile);
// Sets the engine's queues to the depths of the profiles that the store has.
void ApplyProfiles(const Store& store, IoEngine& engine);

// The longest time that a read waits for the writes that are in flight on the device when it
// arrives: the bytes of write_depth requests at the calibrated rate. Of later writes, at most the
// bytes of mixed_write_depth requests are in flight at a time. Many small writes may take longer
// than their bytes say.
double SecondsBehindWrites(const DeviceProfile& profile);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CALIBRATION_H_
