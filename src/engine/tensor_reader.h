// SPDX-License-Identifier: Apache-2.0
//
// Reads the bytes that tensors have in a commit directly from a store's files, and checks them,
// without an engine. It is for what inspects a store and must not change it.

#ifndef SPILLWAY_ENGINE_TENSOR_READER_H_
#define SPILLWAY_ENGINE_TENSOR_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/store/store.h"
#include "io/store/store_view.h"
#include "spillway/types.h"

namespace spillway::engine {

// Externally synchronised. The view must outlive the reader.
class TensorReader {
 public:
  // Reads tensors as of the commit with this number, which must be the last or a snapshot's.
  TensorReader(const io::StoreView& view, uint64_t commit) : view_(view), commit_(commit) {}

  // Returns the tensor's description, as DescribeSpec made it; none if the commit has no such
  // tensor.
  absl::StatusOr<std::optional<std::string>> Description(const std::string& name);
  // Returns a DataLoss error that names the catalog and says what to do.
  absl::Status Damaged(std::string_view what) const { return view_.catalog().Damaged(what); }

  // Hands all bytes of the tensor to `consume`, in order, in pieces of at most a page. Pages that
  // were never written are zeros.
  using Consume = std::function<absl::Status(std::span<const std::byte>)>;
  absl::Status Read(const TensorSpec& spec, const Consume& consume);

  // Locate and ReadTile read a tile at a time, for callers that read several tensors together.
  struct Located {
    TensorSpec spec;
    std::map<uint64_t, io::PageRecord> pages;
  };
  absl::StatusOr<Located> Locate(const TensorSpec& spec);
  absl::Status ReadTile(const Located& tensor, uint64_t tile, const Consume& consume);

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Found {
    uint64_t id = 0;
    uint64_t num_pages = 0;
    std::string description;
  };
  absl::StatusOr<std::optional<Found>> FindRow(const std::string& name);
  absl::StatusOr<std::map<uint64_t, io::PageRecord>> ReadRows(uint64_t id);
  absl::StatusOr<std::span<const std::byte>> ReadPage(const std::string& tensor, uint64_t page,
                                                      const io::PageRecord& record);
  absl::StatusOr<const io::DirectFile*> Open(const io::Extent& extent);

  const io::StoreView& view_;
  const uint64_t commit_;
  std::map<std::pair<uint16_t, uint32_t>, io::DirectFile> files_;
  std::unique_ptr<std::byte, Free> buffer_;
  size_t buffer_bytes_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TENSOR_READER_H_
