// SPDX-License-Identifier: Apache-2.0
//
// In a non-transient tensor, an unchanged slot holds the catalog's record if its range is loaded,
// and means nothing before that. A changed slot holds what the next commit writes: a copy, or none.

#include "io/store/page_ledger.h"

#include <algorithm>

#include "src/base/check.h"

namespace spillway::io {
namespace {

constexpr uint64_t kUnitBytes = kIoAlignment;

}  // namespace

PageLedger::Slot PageLedger::Pack(const PageRecord& record) {
  Slot slot;
  slot.checksum = record.checksum;
  slot.content_bytes = record.content_bytes;
  slot.skip_bytes = record.skip_bytes;
  slot.offset_units = static_cast<uint32_t>(record.extent.offset / kUnitBytes);
  slot.device = record.extent.device & 0xffu;
  slot.segment = record.extent.segment & 0xffffffu;
  slot.size_units = (record.extent.size_bytes / kUnitBytes) & 0xffffffu;
  slot.packed = record.packed;
  return slot;
}

PageRecord PageLedger::Unpack(const Slot& slot) {
  PageRecord record;
  record.extent.device = static_cast<uint16_t>(slot.device);
  record.extent.segment = slot.segment;
  record.extent.offset = uint64_t{slot.offset_units} * kUnitBytes;
  record.extent.size_bytes = static_cast<uint32_t>(slot.size_units * kUnitBytes);
  record.content_bytes = slot.content_bytes;
  record.checksum = slot.checksum;
  record.skip_bytes = slot.skip_bytes;
  record.packed = slot.packed;
  return record;
}

const PageLedger::Slot* PageLedger::FindSlot(PageKey key) const {
  const auto& ranges = tensors_[key.tensor].ranges;
  const auto range = ranges.find(key.page / kRangePages);
  return range == ranges.end() ? nullptr : &range->second.slots[key.page % kRangePages];
}

PageLedger::Range& PageLedger::MakeRange(PageKey key) {
  Tensor& tensor = tensors_[key.tensor];
  SPILLWAY_CHECK(key.page < tensor.num_pages);
  const uint64_t number = key.page / kRangePages;
  Range& range = tensor.ranges[number];
  if (range.slots.empty())
    range.slots.resize(std::min(kRangePages, tensor.num_pages - number * kRangePages));
  return range;
}

bool PageLedger::NeedsLoad(PageKey key) const {
  const Tensor& tensor = tensors_[key.tensor];
  if (tensor.transient || !tensor.committed) return false;
  const Slot* const slot = FindSlot(key);
  return !(slot && slot->changed) &&
         !(slot && tensor.ranges.find(key.page / kRangePages)->second.loaded);
}

void PageLedger::Load(PageKey key, const PageRecord& record) {
  Slot& slot = MakeSlot(key);
  if (!slot.changed) slot = Pack(record);
}

void PageLedger::SetLoaded(PageKey any_of_range) { MakeRange(any_of_range).loaded = true; }

std::optional<PageRecord> PageLedger::Find(PageKey key) const {
  const Slot* const slot = FindSlot(key);
  return slot && slot->size_units > 0 ? std::optional(Unpack(*slot)) : std::nullopt;
}

std::optional<PageRecord> PageLedger::Replace(PageKey key, const Slot& replacement) {
  Slot& slot = MakeSlot(key);
  const Slot old = std::exchange(slot, replacement);
  const bool is_transient = tensors_[key.tensor].transient;
  if (!is_transient) {
    slot.changed = 1;
    if (!old.changed) {
      changed_is_sorted_ = changed_is_sorted_ && (changed_.empty() || changed_.back() < key);
      changed_.push_back(key);
    }
  }
  if (old.size_units == 0) return std::nullopt;
  const PageRecord old_record = Unpack(old);
  const bool moved = !(old_record.extent == Unpack(replacement).extent);
  if (is_transient || (old.changed && !old.in_doubt))
    return moved || old.packed ? std::optional(old_record) : std::nullopt;
  if (old.in_doubt && (moved || old.packed)) doubtful_.push_back(old_record);
  return std::nullopt;
}

std::optional<PageRecord> PageLedger::Record(PageKey key, const PageRecord& record) {
  SPILLWAY_CHECK(record.extent.size_bytes > 0 && record.skip_bytes <= record.extent.size_bytes &&
                 record.content_bytes <= record.extent.size_bytes - record.skip_bytes);
  SPILLWAY_CHECK(record.packed || record.skip_bytes == 0);
  return Replace(key, Pack(record));
}

std::optional<PageRecord> PageLedger::Forget(PageKey key) {
  return NeedsLoad(key) || Find(key) ? Replace(key, Slot()) : std::nullopt;
}

std::span<const PageKey> PageLedger::Changed() {
  if (!changed_is_sorted_) std::sort(changed_.begin(), changed_.end());
  changed_is_sorted_ = true;
  return changed_;
}

std::vector<PageRecord> PageLedger::Committed() {
  for (const PageKey& key : changed_) {
    Slot& slot = MakeSlot(key);
    slot.changed = 0;
    slot.in_doubt = 0;
  }
  changed_.clear();
  changed_is_sorted_ = true;
  return std::exchange(doubtful_, {});
}

void PageLedger::CommitInDoubt() {
  for (const PageKey& key : changed_) {
    Slot& slot = MakeSlot(key);
    slot.in_doubt = slot.size_units > 0;
  }
}

std::vector<PageRecord> PageLedger::Reset() {
  std::vector<PageRecord> given_up = std::exchange(doubtful_, {});
  for (const PageKey& key : changed_) {
    if (const auto record = Find(key)) given_up.push_back(*record);
  }
  changed_.clear();
  changed_is_sorted_ = true;
  for (Tensor& tensor : tensors_) {
    if (!tensor.transient) tensor.ranges.clear();
  }
  return given_up;
}

}  // namespace spillway::io
