// SPDX-License-Identifier: Apache-2.0
//
// A short look at a store's device: the request size and the queue depths that it likes, and what
// they give. The store keeps the result; PageIo and the engine's queues go by it.
//
// One idea: of all depths within 3% of the best, the smallest that holds 50 ms of work: shallower
// queues make everything that comes later wait less, but a run is less even than a calibration (a
// thread that hashes or sleeps leaves a shallow queue empty). No queue holds more than 150 ms of
// work, because a read that comes waits for all that is there. Smaller requests
// cost CPU, though, and larger ones leave less to overtake, so requests have kDefaultRequestBytes
// unless another size is clearly faster.

#ifndef SPILLWAY_IO_STORE_CALIBRATION_H_
#define SPILLWAY_IO_STORE_CALIBRATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/io_engine.h"
#include "io/store/store.h"

namespace spillway::io {

inline constexpr uint64_t kLeastCalibrationBytes = uint64_t{16} << 20;
// kMaxQueueDepth requests of 512 KiB.
inline constexpr uint64_t kMostCalibrationBytes = uint64_t{512} << 20;

struct CalibrationOptions {
  // Of a file without a name, gone afterwards; at least kLeastCalibrationBytes. On a slow device
  // less is written, and the rest moves within that.
  uint64_t file_bytes = uint64_t{512} << 20;
  // To move through: what bounds the depths that are tried; at least kLeastCalibrationBytes.
  uint64_t memory_bytes = kMostCalibrationBytes;
  absl::Duration limit = absl::Seconds(6);  // fewer repetitions, then fewer settings
  absl::Duration sample = absl::Milliseconds(60);
  const std::atomic<bool>* stop = nullptr;  // true: end soon, with Cancelled
};

// Measures the device that `folder` lies on, through `engine`, whose queues for `device` are as the
// profile says afterwards. Takes five or six seconds, at most options.limit and the requests under
// way then. REQUIRES: nothing in flight and no buffer announced: buffers are removed.
// ResourceExhausted if the file or the memory cannot be had; DeadlineExceeded if nothing ended
// within the limit; else the I/O's status.
absl::StatusOr<DeviceProfile> Calibrate(const std::string& folder, IoEngine& engine,
                                        uint16_t device, const CalibrationOptions& options = {});

// Gives every device of the store what its profile says, after measuring those without one, or all
// if `again`. `folders` are the store's. As above.
absl::Status CalibrateStore(Store& store, std::span<const std::string> folders, IoEngine& engine,
                            bool again, const CalibrationOptions& options = {});

QueueDepths DepthsOf(const DeviceProfile& profile);
// The engine's queues go by the profiles that the store has.
void ApplyProfiles(const Store& store, IoEngine& engine);

// How long a read waits at most for the writes that are with the device when it comes: write_depth
// requests at the calibrated rate. Those that come later are mixed_write_depth at a time.
double SecondsBehindWrites(const DeviceProfile& profile);

// The first of a ladder's rates that is at least 97% of the best. REQUIRES: not empty.
size_t SmallestGoodEnough(std::span<const double> rates);
// Of those that are, the first whose queue of so many bytes is kShortestQueueSeconds of work; if
// none is, the last.
inline constexpr double kShortestQueueSeconds = 0.05;
size_t SmallestWithEnoughWork(std::span<const double> rates, std::span<const uint64_t> queue_bytes);
// `by_default` if it was not measured (0), or if its rate is at least 70% of the best, else the
// best's.
size_t DefaultOrBest(std::span<const double> rates, size_t by_default);

// The bytes a second at which as many bytes are read as written: both together at these rates until
// one side is done, then the rest of the other at its rate alone. REQUIRES: all rates above 0.
double EqualSharesRate(double read_rate, double write_rate, const DeviceProfile& alone);

// Reads and writes under way together.
struct MixedDepth {
  int reads = 0;
  int writes = 0;
};
// What mixed_write_depth is chosen from: as many reads as read_depth, or as `slots` leave room for,
// and one, two, four ... up to write_depth writes beside. Never more than `slots` together.
// REQUIRES: slots >= 2.
std::vector<MixedDepth> MixedDepths(int read_depth, int write_depth, int slots);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CALIBRATION_H_
