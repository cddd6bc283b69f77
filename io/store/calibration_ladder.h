// SPDX-License-Identifier: Apache-2.0
//
// What a calibration chooses from the rates of a ladder of settings: pure functions.

#ifndef SPILLWAY_IO_STORE_CALIBRATION_LADDER_H_
#define SPILLWAY_IO_STORE_CALIBRATION_LADDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spillway::io {

// Returns the median, the mean of the middle two of an even number, or 0 if there are none.
double Median(std::vector<double> values);
// Returns the index of the first of a ladder's rates that is at least 97% of the best. REQUIRES:
// not empty.
size_t SmallestGoodEnough(std::span<const double> rates);
// Returns each rate of a ladder of depths as the median of its own and its neighbours', so that one
// lucky or unlucky sample does not count. A rate of 0, which was not measured, stays 0 and is no
// neighbour.
std::vector<double> Smoothed(std::span<const double> rates);
// Returns the rate that a run is expected to reach with each queue, from its measured rate and its
// size. In the time that the device takes for all of a queue, it idles for kGapSeconds. The rate of
// a queue that holds more than kLongestQueueSeconds of work counts as 0, but for the first.
inline constexpr double kGapSeconds = 0.002;
inline constexpr double kLongestQueueSeconds = 0.15;
std::vector<double> RunRates(std::span<const double> rates, std::span<const uint64_t> queue_bytes);
// Returns, for each setting, the least of its shares of the best rate, over several kinds of load.
// `rates` has the rates of the settings, by kind; 0 is a rate that was not measured. A kind without
// a rate does not count. REQUIRES: at least one kind, all of the same number of settings.
std::vector<double> LeastShares(std::span<const std::vector<double>> rates);
// Returns `by_default` if it was not measured (rate 0) or if its rate is at least 70% of the best,
// else the index of the best rate.
size_t DefaultOrBest(std::span<const double> rates, size_t by_default);

// Returns the candidates for mixed_write_depth: 1, 4, 16 ... and last `most`. REQUIRES: most >= 1.
std::vector<int> MixedWriteDepths(int most);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CALIBRATION_LADDER_H_
