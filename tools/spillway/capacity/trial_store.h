// SPDX-License-Identifier: Apache-2.0
//
// The sparse store of a trial, open or closed, and what is done with the pages of its layout.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_STORE_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/store.h"
#include "tools/spillway/capacity/layout.h"
#include "tools/spillway/capacity/page_queue.h"
#include "tools/spillway/capacity/page_sample.h"
#include "tools/spillway/capacity/trial.h"

namespace spillway::capacity {

// Whether the page is so small that the store packs it with others. Such a page is always written.
bool IsPacked(const Layout& layout, const LaidPage& page);

// The pages that are read back.
struct Sampled {
  std::vector<LaidPage> written;
  std::vector<LaidPage> holes;
};

// Externally synchronised. `options` and `layout` must outlive it.
class TrialStore {
 public:
  enum class Mode : uint8_t { kNew, kExisting };
  static absl::StatusOr<std::unique_ptr<TrialStore>> Open(const TrialOptions& options,
                                                          const Layout& layout, Mode mode);

  io::Store& store() { return *store_; }

  // Gives every page an extent. Those that the sample draws are written, as version 1; the others
  // are recorded with the checksum of zeros.
  absl::StatusOr<Sampled> LayOut();
  uint64_t num_files() const { return files_.size(); }

  absl::Status Write(const std::vector<LaidPage>& pages, uint64_t version);
  // Reads pages and compares them with their version; 0 are holes.
  absl::Status Verify(std::string_view phase, const std::vector<LaidPage>& pages, uint64_t version);
  absl::StatusOr<std::vector<io::PageRecord>> Records(const std::vector<LaidPage>& pages);
  // Compares the bytes of extents that the pages had, or have.
  absl::Status VerifyRecords(const std::vector<LaidPage>& pages,
                             const std::vector<io::PageRecord>& records, uint64_t version);
  // Looks up the row of every page, and compares it with the layout: one row for each page, as long
  // as the page, with the checksum of zeros unless the page was written. DataLoss names the first
  // that differs.
  absl::Status CheckRows(const std::vector<LaidPage>& written);

 private:
  using FileKey = std::pair<uint16_t, uint32_t>;

  TrialStore(const TrialOptions& options, const Layout& layout)
      : options_(options), layout_(layout), tensors_(layout.specs().size()) {}
  absl::Status CheckStop() const;
  void Show(std::string_view phase, uint64_t done, uint64_t total) const;
  absl::StatusOr<io::TensorIndex> Index(uint32_t tensor);
  absl::StatusOr<PageVersion> VersionOf(const LaidPage& page, uint64_t version);
  absl::Status LayOutTensor(uint32_t tensor, PageSample* sample, Sampled* sampled);
  absl::Status LayOutPage(const LaidPage& page, io::TensorIndex tensor, PageSample* sample,
                          Sampled* sampled);
  absl::Status CheckEachFileHasWritten(const std::vector<LaidPage>& written);
  uint64_t ZeroChecksum(uint32_t bytes);

  const TrialOptions& options_;
  const Layout& layout_;
  std::unique_ptr<io::IoEngine> io_;
  std::unique_ptr<io::Store> store_;
  std::unique_ptr<PageQueue> queue_;
  std::vector<std::optional<io::TensorIndex>> tensors_;  // by tensor of the layout
  std::set<FileKey> files_;                              // that rows name
  absl::flat_hash_map<uint32_t, uint64_t> zero_checksums_;
  uint64_t done_ = 0;   // pages of the current phase
  uint64_t total_ = 0;  // pages of all tensors
};

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_TRIAL_STORE_H_
