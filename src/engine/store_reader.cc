// SPDX-License-Identifier: Apache-2.0

#include "spillway/store_reader.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/store/store_view.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "src/engine/tensor_reader.h"
#include "src/engine/tensor_registry.h"

namespace spillway {
namespace {

using base::View;

class StoreReaderImpl final : public StoreReader {
 public:
  explicit StoreReaderImpl(std::unique_ptr<io::StoreView> view) : view_(std::move(view)) {}

  const std::string& StoreId() const override { return view_->identity().store_id; }
  absl::StatusOr<std::string> UserState(std::string_view label) override;
  absl::Status Read(std::string_view label, const TensorSpec& spec,
                    std::span<std::byte> out) override;

 private:
  absl::StatusOr<io::SnapshotRecord> Find(std::string_view label);

  const std::unique_ptr<io::StoreView> view_;
};

absl::StatusOr<io::SnapshotRecord> StoreReaderImpl::Find(std::string_view label) {
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<io::SnapshotRecord> snapshots,
                            view_->catalog().ReadSnapshots());
  for (io::SnapshotRecord& each : snapshots)
    if (each.label == label) return std::move(each);
  return absl::NotFoundError(absl::StrCat("the store in ", view_->folders()[0].path(),
                                          " has no snapshot '", View(label), "'"));
}

absl::StatusOr<std::string> StoreReaderImpl::UserState(std::string_view label) {
  SPILLWAY_ASSIGN_OR_RETURN(io::SnapshotRecord snapshot, Find(label));
  return std::move(snapshot.user_state);
}

absl::Status StoreReaderImpl::Read(std::string_view label, const TensorSpec& spec,
                                   std::span<std::byte> out) {
  SPILLWAY_ASSIGN_OR_RETURN(const io::SnapshotRecord snapshot, Find(label));
  engine::TensorReader reader(*view_, snapshot.number);
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<std::string> there, reader.Description(spec.name));
  if (!there) {
    return absl::NotFoundError(
        absl::StrCat("snapshot '", View(label), "' does not hold the tensor '", spec.name, "'"));
  }
  if (const std::string wanted = engine::DescribeSpec(spec); *there != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", spec.name, "' is ", *there,
                                                   " in the snapshot, and is read as ", wanted));
  }
  if (out.size() != spec.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", spec.name, "' has ",
                                                   spec.size_bytes(),
                                                   " bytes, and there is room for ", out.size()));
  }
  return reader.Read(spec, [&out](std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), out.begin());
    out = out.subspan(piece.size());
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreReader>> StoreReader::Open(
    const std::vector<std::string>& store) {
  SPILLWAY_ASSIGN_OR_RETURN(auto view,
                            io::StoreView::Open(store, io::StoreView::Wanted::kAnyState));
  return std::make_unique<StoreReaderImpl>(std::move(view));
}

}  // namespace spillway
