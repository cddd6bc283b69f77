// SPDX-License-Identifier: Apache-2.0

#include "src/engine/rate_meter.h"

#include <algorithm>
#include <limits>

namespace spillway::engine {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double Rate(const base::Busy& busy) { return static_cast<double>(busy.bytes) / busy.seconds; }

}  // namespace

void RateMeter::Best::Take(const base::Busy& total) {
  const base::Busy step = total - total_;
  const bool is_short = step.seconds < kLeastSeconds;
  in_short_step_ = is_short && step.seconds > 0 ? Rate(step) : 0;
  total_ = total;
  const base::Busy more = total - taken_;
  if (more.seconds < kLeastSeconds) return;
  best_ = std::max(best_, Rate(more));
  taken_ = total;
}

double RateMeter::Best::bytes_per_second() const {
  if (best_ > 0) return std::max(best_, in_short_step_);
  return total_.bytes > 0 && total_.seconds > 0 ? std::max(Rate(total_), in_short_step_)
                                                : kInfinite;
}

void RateMeter::LinkRate::Take(const base::LinkBusy& total) {
  all_.Take(total.all);
  const base::Busy step = total.all - total_.all, sustained = total.sustained - total_.sustained;
  const bool is_short = step.seconds > 0 && step.seconds < kLeastSustainedSeconds;
  in_step_ = is_short && sustained.seconds > 0 ? std::min(Rate(step), Rate(sustained)) : 0;
  total_ = total;
}

double RateMeter::LinkRate::bytes_per_second() const {
  const auto most_in_a_second = static_cast<double>(total_.most_bytes_in_a_second);
  const base::Busy& sustained = total_.sustained;
  if (sustained.bytes == 0 || sustained.seconds < kLeastSustainedSeconds)
    return std::max(all_.bytes_per_second(), most_in_a_second);
  return std::max({Rate(sustained), all_.in_short_step(), in_step_,
                   most_in_a_second / (1 + base::BusySpells::kBeginningSeconds)});
}

void RateMeter::EndStep(const LinkUse& use) {
  for (size_t link = 0; link < links_.size(); ++link) links_[link].Take(use.links[link]);
  nvme_both_.Take(use.nvme_both);
  checksums_.Take(use.checksums);
}

plan::Rates RateMeter::rates() const {
  plan::Rates rates;
  for (size_t link = 0; link < links_.size(); ++link)
    rates.link[link] = links_[link].bytes_per_second();
  const double read = rates[plan::Transfer::kRead], write = rates[plan::Transfer::kWrite];
  rates.nvme = read + write;
  if (nvme_both_.is_known())
    rates.nvme = std::min(rates.nvme, std::max({read, write, nvme_both_.bytes_per_second()}));
  rates.checksum = checksums_.bytes_per_second();
  return rates;
}

}  // namespace spillway::engine
