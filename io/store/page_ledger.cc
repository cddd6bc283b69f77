// SPDX-License-Identifier: Apache-2.0
//
// A page's slot is in one of four states: no copy; a copy that no commit names; a copy that a
// commit names; and, after a commit in doubt, a copy that a commit may name although the page still
// counts as changed.

#include "io/store/page_ledger.h"

#include <algorithm>
#include <utility>

#include "io/store/catalog_digest.h"
#include "src/base/check.h"

namespace spillway::io {
namespace {

constexpr uint64_t kUnitBytes = kIoAlignment;

}  // namespace

PageLedger::Slot PageLedger::Pack(const PageRecord& record) {
  Slot slot;
  slot.checksum = record.checksum;
  slot.content_bytes = record.content_bytes;
  slot.offset_units = static_cast<uint32_t>(record.extent.offset / kUnitBytes);
  slot.device = record.extent.device & 0xffu;
  slot.segment = record.extent.segment & 0xffffffu;
  slot.size_units = (record.extent.size_bytes / kUnitBytes) & 0xffffffu;
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
  return record;
}

const PageLedger::Slot* PageLedger::FindSlot(PageKey key) const {
  const std::vector<Slot>& pages = tensors_[key.tensor].pages;
  return key.page < pages.size() && pages[key.page].size_units > 0 ? &pages[key.page] : nullptr;
}

PageLedger::Slot& PageLedger::MakeSlot(PageKey key) {
  std::vector<Slot>& pages = tensors_[key.tensor].pages;
  if (key.page >= pages.size()) pages.resize(key.page + 1);
  return pages[key.page];
}

std::optional<PageRecord> PageLedger::Find(PageKey key) const {
  const Slot* slot = FindSlot(key);
  return slot ? std::optional(Unpack(*slot)) : std::nullopt;
}

bool PageLedger::IsNamedByCommit(PageKey key) const {
  const Slot* slot = FindSlot(key);
  return slot && slot->named;
}

void PageLedger::Load(PageKey key, const PageRecord& record) {
  Slot& slot = MakeSlot(key);
  SPILLWAY_CHECK(slot.size_units == 0);
  slot = Pack(record);
  slot.named = 1;
  digest_ += PageDigest(*tensors_[key.tensor].catalog_id, key.page, record);
}

std::optional<Extent> PageLedger::Replace(PageKey key, const Slot& replacement) {
  Slot& slot = MakeSlot(key);
  const Slot old = std::exchange(slot, replacement);
  const PageRecord old_record = Unpack(old);
  const bool moved = !(old_record.extent == Unpack(replacement).extent);
  const std::optional<uint64_t> catalog_id = tensors_[key.tensor].catalog_id;
  if (catalog_id) {
    if (old.size_units > 0) digest_ -= PageDigest(*catalog_id, key.page, old_record);
    if (replacement.size_units > 0)
      digest_ += PageDigest(*catalog_id, key.page, Unpack(replacement));
    slot.changed = 1;
    if (!old.changed) {
      changed_is_sorted_ = changed_is_sorted_ && (changed_.empty() || changed_.back() < key);
      changed_.push_back(key);
    }
  }
  if (old.named) {
    SPILLWAY_CHECK(moved);  // what a commit names is never written in place
    superseded_.push_back(
        {old.device, old.segment, old.offset_units, old_record.extent.size_bytes});
    return std::nullopt;
  }
  return old.size_units > 0 && moved ? std::optional(old_record.extent) : std::nullopt;
}

std::optional<Extent> PageLedger::Record(PageKey key, const PageRecord& record) {
  SPILLWAY_CHECK(record.extent.size_bytes > 0 && record.content_bytes <= record.extent.size_bytes);
  return Replace(key, Pack(record));
}

std::optional<Extent> PageLedger::Forget(PageKey key) {
  return FindSlot(key) ? Replace(key, Slot()) : std::nullopt;
}

std::span<const PageKey> PageLedger::Changed() {
  if (!changed_is_sorted_) std::sort(changed_.begin(), changed_.end());
  changed_is_sorted_ = true;
  return changed_;
}

std::vector<Extent> PageLedger::Committed() {
  for (const PageKey& key : changed_) {
    Slot& slot = tensors_[key.tensor].pages[key.page];
    slot.changed = 0;
    slot.named = slot.size_units > 0;
  }
  changed_.clear();
  changed_is_sorted_ = true;
  std::vector<Extent> freed;
  freed.reserve(superseded_.size());
  for (const Superseded& old : superseded_) {
    freed.push_back({static_cast<uint16_t>(old.device), old.segment,
                     uint64_t{old.offset_units} * kUnitBytes, old.size_bytes});
  }
  superseded_.clear();
  return freed;
}

void PageLedger::CommitInDoubt() {
  for (const PageKey& key : changed_) {
    Slot& slot = tensors_[key.tensor].pages[key.page];
    slot.named = slot.size_units > 0;
  }
}

}  // namespace spillway::io
