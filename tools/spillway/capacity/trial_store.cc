// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/trial_store.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "io/make_io_engine.h"
#include "io/store/page_io.h"
#include "src/base/bytes.h"
#include "src/base/existing_folder.h"
#include "src/base/status_macros.h"
#include "src/engine/tensor_registry.h"

namespace spillway::capacity {
namespace {

constexpr uint64_t kPagesPerLook = 4096;  // between two looks at the flag to stop

bool IsBefore(const LaidPage& a, const LaidPage& b) {
  return std::tie(a.tensor, a.page) < std::tie(b.tensor, b.page);
}

}  // namespace

bool IsPacked(const Layout& layout, const LaidPage& page) {
  const TensorSpec& spec = layout.specs()[page.tensor];
  const uint64_t per_tile = layout.NumPages(spec) / spec.num_tiles();
  return spec.tile_bytes(page.page / per_tile) <= io::PackedBytes(layout.page_bytes());
}

absl::StatusOr<std::unique_ptr<TrialStore>> TrialStore::Open(const TrialOptions& options,
                                                             const Layout& layout, Mode mode) {
  std::unique_ptr<TrialStore> trial(new TrialStore(options, layout));
  const auto announce = [&options](std::string_view what) {
    if (options.note) options.note(what);
  };
  SPILLWAY_ASSIGN_OR_RETURN(
      trial->io_, io::MakeIoEngine(IoKind::kAuto, {}, base::ExistingFolder(options.folders[0]),
                                   mode == Mode::kNew ? io::Announce(announce) : nullptr));
  io::StoreOptions store;
  store.folders = options.folders;
  store.create = mode == Mode::kNew;
  store.must_not_exist = mode == Mode::kNew;
  store.sparse = true;
  store.page_bytes = options.page_bytes;
  store.segment_bytes = options.segment_bytes;
  store.stop = options.stop;
  if (mode == Mode::kNew) store.announce = announce;
  SPILLWAY_ASSIGN_OR_RETURN(trial->store_, io::Store::Open(store, trial->io_.get()));
  SPILLWAY_ASSIGN_OR_RETURN(trial->queue_,
                            PageQueue::Create(trial->store_.get(), trial->io_.get(), options.seed));
  return trial;
}

absl::Status TrialStore::CheckStop() const {
  return options_.stop != nullptr && options_.stop->load() ? absl::CancelledError("interrupted")
                                                           : absl::OkStatus();
}

void TrialStore::Show(std::string_view phase, uint64_t done, uint64_t total) const {
  if (options_.progress) options_.progress(phase, done, total);
}

absl::StatusOr<io::TensorIndex> TrialStore::Index(uint32_t tensor) {
  std::optional<io::TensorIndex>& index = tensors_[tensor];
  if (index) return *index;
  const TensorSpec& spec = layout_.specs()[tensor];
  SPILLWAY_ASSIGN_OR_RETURN(index, store_->FindTensor(spec.name));
  const std::string description = engine::DescribeSpec(spec);
  if (!index || store_->Tensor(*index).description != description ||
      store_->Tensor(*index).num_pages != layout_.NumPages(spec)) {
    return absl::DataLossError(absl::StrCat(
        "tensor ", spec.name,
        index ? " is another one in the reopened store" : " is not in the reopened store"));
  }
  return *index;
}

absl::StatusOr<PageVersion> TrialStore::VersionOf(const LaidPage& page, uint64_t version) {
  SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Index(page.tensor));
  return PageVersion{page, tensor, version};
}

uint64_t TrialStore::ZeroChecksum(uint32_t bytes) {
  const auto [checksum, is_new] = zero_checksums_.try_emplace(bytes, 0);
  if (is_new) checksum->second = io::Checksum(std::vector<std::byte>(bytes));
  return checksum->second;
}

// --- Laying out ---

absl::StatusOr<Sampled> TrialStore::LayOut() {
  const uint64_t rows = layout_.Totals(/*transient=*/false).pages;
  total_ = rows + layout_.Totals(/*transient=*/true).pages;
  done_ = 0;
  PageSample sample(options_.seed, rows);
  Sampled sampled;
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor)
    SPILLWAY_RETURN_IF_ERROR(LayOutTensor(tensor, &sample, &sampled));
  SPILLWAY_RETURN_IF_ERROR(queue_->Drain());
  SPILLWAY_RETURN_IF_ERROR(CheckEachFileHasWritten(sampled.written));
  return sampled;
}

absl::Status TrialStore::LayOutTensor(uint32_t tensor, PageSample* sample, Sampled* sampled) {
  const TensorSpec& spec = layout_.specs()[tensor];
  SPILLWAY_ASSIGN_OR_RETURN(
      tensors_[tensor],
      store_->AddTensor({spec.name, engine::DescribeSpec(spec), layout_.NumPages(spec)},
                        spec.transient));
  absl::Status status;
  layout_.ForEachPage(tensor, [&](const LaidPage& page) {
    if (done_++ % kPagesPerLook == 0) {
      status.Update(CheckStop());
      Show("lay out", done_, total_);
    }
    if (status.ok()) status = LayOutPage(page, *tensors_[tensor], sample, sampled);
    return status.ok();
  });
  return status;
}

absl::Status TrialStore::LayOutPage(const LaidPage& page, io::TensorIndex tensor,
                                    PageSample* sample, Sampled* sampled) {
  const bool has_row = !layout_.specs()[page.tensor].transient;
  const bool is_packed = has_row && IsPacked(layout_, page);
  if (is_packed) {
    (void)sample->Next(true);
    sampled->written.push_back(page);
    return queue_->Write({page, tensor, 1});
  }
  io::PageRecord record = {.content_bytes = page.bytes, .checksum = ZeroChecksum(page.bytes)};
  SPILLWAY_ASSIGN_OR_RETURN(record.extent, store_->Allocate(page.bytes));
  const io::Extent& extent = record.extent;
  const bool is_first = has_row && files_.insert({extent.device, extent.segment}).second;
  const PageUse use = has_row ? sample->Next(is_first) : PageUse::kHole;
  if (use == PageUse::kVerifiedHole) sampled->holes.push_back(page);
  if (use != PageUse::kWritten) {
    store_->Record(tensor, page.page, record);
    return absl::OkStatus();
  }
  sampled->written.push_back(page);
  if (is_first) return queue_->WriteTo({page, tensor, 1}, extent);
  store_->Release(extent);  // PageIo allocates one itself, as for the engine
  return queue_->Write({page, tensor, 1});
}

absl::Status TrialStore::CheckEachFileHasWritten(const std::vector<LaidPage>& written) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<io::PageRecord> records, Records(written));
  std::set<FileKey> with_written;
  for (const io::PageRecord& record : records)
    with_written.insert({record.extent.device, record.extent.segment});
  files_.insert(with_written.begin(), with_written.end());
  if (with_written == files_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(files_.size() - with_written.size(), " of ",
                                          files_.size(), " files have no written page"));
}

// --- Pages ---

absl::Status TrialStore::Write(const std::vector<LaidPage>& pages, uint64_t version) {
  for (const LaidPage& page : pages) {
    SPILLWAY_RETURN_IF_ERROR(CheckStop());
    SPILLWAY_ASSIGN_OR_RETURN(const PageVersion one, VersionOf(page, version));
    SPILLWAY_RETURN_IF_ERROR(queue_->Write(one));
  }
  return queue_->Drain();
}

absl::Status TrialStore::Verify(std::string_view phase, const std::vector<LaidPage>& pages,
                                uint64_t version) {
  uint64_t done = 0;
  for (const LaidPage& page : pages) {
    SPILLWAY_RETURN_IF_ERROR(CheckStop());
    SPILLWAY_ASSIGN_OR_RETURN(const PageVersion one, VersionOf(page, version));
    SPILLWAY_RETURN_IF_ERROR(queue_->Read(one));
    Show(phase, ++done, pages.size());
  }
  return queue_->Drain();
}

absl::StatusOr<std::vector<io::PageRecord>> TrialStore::Records(
    const std::vector<LaidPage>& pages) {
  std::vector<io::PageRecord> records;
  for (const LaidPage& page : pages) {
    SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex tensor, Index(page.tensor));
    SPILLWAY_ASSIGN_OR_RETURN(const std::optional<io::PageRecord> record,
                              store_->FindPage(tensor, page.page));
    if (!record) {
      return absl::DataLossError(absl::StrCat("page ", page.page, " of tensor ",
                                              layout_.specs()[page.tensor].name, " has no row"));
    }
    records.push_back(*record);
  }
  return records;
}

absl::Status TrialStore::VerifyRecords(const std::vector<LaidPage>& pages,
                                       const std::vector<io::PageRecord>& records,
                                       uint64_t version) {
  for (size_t i = 0; i < pages.size(); ++i) {
    SPILLWAY_RETURN_IF_ERROR(CheckStop());
    SPILLWAY_ASSIGN_OR_RETURN(const PageVersion one, VersionOf(pages[i], version));
    SPILLWAY_RETURN_IF_ERROR(queue_->ReadRecord(one, records[i]));
  }
  return absl::OkStatus();
}

absl::Status TrialStore::CheckRows(const std::vector<LaidPage>& written) {
  std::vector<LaidPage> sorted = written;
  std::sort(sorted.begin(), sorted.end(), IsBefore);
  auto next_written = sorted.begin();
  const uint64_t total = layout_.Totals(/*transient=*/false).pages;
  uint64_t done = 0;
  absl::Status status;
  for (uint32_t tensor = 0; tensor < tensors_.size() && status.ok(); ++tensor) {
    if (layout_.specs()[tensor].transient) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const io::TensorIndex index, Index(tensor));
    layout_.ForEachPage(tensor, [&](const LaidPage& page) {
      if (done++ % kPagesPerLook == 0) {
        status.Update(CheckStop());
        Show("check rows", done, total);
      }
      const bool is_written = next_written != sorted.end() && !IsBefore(page, *next_written);
      if (is_written) ++next_written;
      const auto record = store_->FindPage(index, page.page);
      if (!record.ok()) status.Update(record.status());
      const bool is_right = record.ok() && record->has_value() &&
                            (*record)->content_bytes == page.bytes &&
                            is_written == ((*record)->checksum != ZeroChecksum(page.bytes));
      if (status.ok() && !is_right) {
        status = absl::DataLossError(absl::StrCat("the row of page ", page.page, " of tensor ",
                                                  layout_.specs()[tensor].name,
                                                  " is missing or is not that of the layout"));
      }
      return status.ok();
    });
  }
  return status;
}

}  // namespace spillway::capacity
