// SPDX-License-Identifier: Apache-2.0
//
// Compares the store with a model that keeps everything in plain maps. Random steps write, forget
// and pack pages, remove tensors, commit, take snapshots, restore and drop them, close or kill the
// store and reopen it, and give space back. After each step the store reports what the model has,
// no byte that may still be read was allocated again, and the bytes in use are exactly those that
// are needed. After each change of the catalog every invariant of io/FORMAT.md holds.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/io/store/catalog_invariants.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

constexpr uint64_t kUnit = kIoAlignment;

struct Shape {
  const char* name;
  uint64_t page_bytes;
  uint64_t segment_bytes;
  int num_folders;
  bool can_be_copied;  // the open store's files, to simulate a kill
  int steps;
};

class Model {
 public:
  Model(const Shape& shape, uint64_t seed) : shape_(shape), random_(seed) { Open(); }

  void Step() {
    switch (random_() % 40) {
      case 0:
      case 1:
      case 2: return Commit();
      case 3:
      case 4: return Snapshot();
      case 5: return Restore();
      case 6: return Drop();
      case 7: return Reopen();
      case 8: return shape_.can_be_copied ? Kill() : Reopen();
      case 9: return Trim();
      case 10:
      case 11: return Forget();
      case 12:
      case 13:
      case 14: return WritePack();
      case 15: return WriteTransient();
      case 16: return AllocateAndRelease();
      case 17:
      case 18:
      case 19: return Look();
      case 20: return Remove();
      default: return Write();
    }
  }
  void Check() {
    // Checks that every needed page is on the disk as it was written.
    std::map<Place, uint32_t> needed;
    const auto need = [&](const State& state) {
      for (const auto& [name, pages] : state)
        for (const auto& [page, copy] : pages) Need(copy, &needed);
    };
    need(current_);
    need(committed_);
    for (const auto& [label, snapshot] : snapshots_) need(snapshot.state);
    for (const auto& [page, copy] : transient_) Need(copy, &needed);
    if (::testing::Test::HasFatalFailure()) return;
    uint64_t used_bytes = 0;
    for (const auto& [place, size_bytes] : needed) used_bytes += size_bytes;
    ASSERT_EQ(store_->used_bytes(), used_bytes);
    ASSERT_EQ(store_->UserState(), user_state_);
    const auto snapshots = store_->Snapshots();
    ASSERT_TRUE(snapshots.ok()) << snapshots.status();
    ASSERT_EQ(snapshots->size(), snapshots_.size());
    for (const SnapshotRecord& record : *snapshots) {
      ASSERT_TRUE(snapshots_.contains(record.label));
      ASSERT_EQ(record.user_state, snapshots_[record.label].user_state);
    }
  }

 private:
  using Place = std::tuple<uint16_t, uint32_t, uint64_t>;
  struct Copy {
    PageRecord record;
    uint64_t write = 0;  // the write that made its bytes
  };
  using State = std::map<std::string, std::map<uint64_t, Copy>>;
  struct Kept {
    State state;
    std::string user_state;
  };

  static Place PlaceOf(const Extent& extent) {
    return {extent.device, extent.segment, extent.offset};
  }
  static uint64_t NumPages(const std::string& name) {
    return name == "large" ? 2500 : 1 + static_cast<uint64_t>(name.back() - '0') * 7;
  }
  std::string AnyName() {
    return random_() % 3 == 0 ? "large" : absl::StrCat("tensor", random_() % 6);
  }
  uint64_t AnyPage(const std::string& name) {
    // Selects from few pages of a large tensor, so that they are written repeatedly.
    const uint64_t pages = NumPages(name);
    return pages < 100 ? random_() % pages : random_() % 40 * 60 + random_() % 3;
  }

  std::string Folder(int folder) const { return absl::StrCat(place_, "/", folder); }
  StoreOptions Options() const {
    StoreOptions options;
    for (int folder = 0; folder < shape_.num_folders; ++folder)
      options.folders.push_back(Folder(folder));
    options.page_bytes = shape_.page_bytes;
    options.segment_bytes = shape_.segment_bytes;
    return options;
  }
  void Open() {
    auto store = Store::Open(Options(), &io_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    indexes_.clear();
    transient_.clear();
    current_ = committed_;
  }
  void CheckCatalog() {
    // The store's own connection is idle, so another one reads the last change.
    auto catalog = Catalog::Open(Folder(0) + "/spillway-catalog.sqlite");
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    CatalogInvariants(catalog->get()).Check();
  }
  void Need(const Copy& copy, std::map<Place, uint32_t>* needed) {
    const Extent& extent = copy.record.extent;
    (*needed)[PlaceOf(extent)] = extent.size_bytes;
    for (uint64_t at = 0; at < extent.size_bytes; at += kUnit) {
      const Place unit = {extent.device, extent.segment, extent.offset + at};
      ASSERT_EQ(disk_[unit], copy.write) << "bytes in use were written again";
    }
  }
  std::optional<TensorIndex> Find(const std::string& name, bool add) {
    const auto found = store_->FindTensor(name);
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->has_value(), current_.contains(name)) << name;
    std::optional<TensorIndex> index = *found;
    if (!index && add) {
      index = *store_->AddTensor({name, absl::StrCat("of ", name), NumPages(name)}, false);
      current_[name];
    }
    if (index) {
      const auto [entry, is_new] = indexes_.emplace(name, *index);
      EXPECT_EQ(entry->second, *index) << "indexes are stable";
      EXPECT_EQ(store_->Tensor(*index).description, "of " + name);
    }
    return index;
  }
  std::optional<Extent> Take(uint32_t size_bytes) {
    const auto extent = store_->Allocate(size_bytes);
    EXPECT_TRUE(extent.ok()) << extent.status();
    if (!extent.ok()) return std::nullopt;
    EXPECT_GE(extent->size_bytes, size_bytes);
    EXPECT_TRUE(store_->File(*extent).ok());
    ++writes_;
    for (uint64_t at = 0; at < extent->size_bytes; at += kUnit)
      disk_[{extent->device, extent->segment, extent->offset + at}] = writes_;
    return *extent;
  }

  void Write() {
    const std::string name = AnyName();
    const TensorIndex tensor = *Find(name, true);
    const uint64_t first = AnyPage(name);
    for (uint64_t page = first; page < std::min(first + 1 + random_() % 3, NumPages(name));
         ++page) {
      const uint32_t content_bytes = static_cast<uint32_t>(1 + random_() % shape_.page_bytes);
      const auto extent = Take(content_bytes);
      if (!extent) return;
      const PageRecord record = {.extent = *extent,
                                 .content_bytes = content_bytes,
                                 .checksum = random_() * uint64_t{0x100000001}};
      store_->Record(tensor, page, record);
      current_[name][page] = {record, writes_};
    }
  }
  void WritePack() {
    const auto extent = Take(static_cast<uint32_t>(std::min(4 * kUnit, shape_.page_bytes)));
    if (!extent) return;
    const uint64_t write = writes_;
    const uint32_t pages = 1 + random_() % 4;
    for (uint32_t i = 0; i < pages; ++i) {
      const std::string name = AnyName();
      const TensorIndex tensor = *Find(name, true);
      const uint64_t page = AnyPage(name);
      const PageRecord record = {.extent = *extent,
                                 .content_bytes = static_cast<uint32_t>(1 + random_() % 1000),
                                 .checksum = random_(),
                                 .skip_bytes = i * 1000,
                                 .packed = true};
      store_->Record(tensor, page, record);
      current_[name][page] = {record, write};
    }
    // If a page was written twice in the pack, the later record remains.
  }
  void WriteTransient() {
    const auto found = store_->FindTensor("transient");
    ASSERT_TRUE(found.ok());
    const TensorIndex tensor =
        found->has_value() ? **found : *store_->AddTensor({"transient", "", 5}, true);
    const uint64_t page = random_() % 5;
    if (random_() % 3 == 0) {
      store_->Forget(tensor, page);
      transient_.erase(page);
      return;
    }
    const auto extent = Take(static_cast<uint32_t>(shape_.page_bytes));
    if (!extent) return;
    const PageRecord record = {.extent = *extent, .content_bytes = 1, .checksum = random_()};
    store_->Record(tensor, page, record);
    transient_[page] = {record, writes_};
  }
  void AllocateAndRelease() {
    if (const auto extent = Take(static_cast<uint32_t>(1 + random_() % shape_.page_bytes)))
      store_->Release(*extent);
  }
  void Forget() {
    const std::string name = AnyName();
    const auto tensor = Find(name, false);
    if (!tensor) return;
    const uint64_t page = AnyPage(name);
    store_->Forget(*tensor, page);
    current_[name].erase(page);
  }
  void Remove() {
    const std::string name = AnyName();
    const auto tensor = Find(name, false);
    if (!tensor) return;
    store_->RemoveTensor(*tensor);
    current_.erase(name);
    indexes_.erase(name);
  }
  void Look() {
    const std::string name = AnyName();
    const auto tensor = Find(name, false);
    if (tensor) LookAt(name, *tensor, AnyPage(name));
  }
  void LookAt(const std::string& name, TensorIndex tensor, uint64_t page) {
    const auto record = store_->FindPage(tensor, page);
    ASSERT_TRUE(record.ok()) << record.status();
    const auto found = current_[name].find(page);
    ASSERT_EQ(*record,
              found == current_[name].end() ? std::nullopt : std::optional(found->second.record))
        << name << " page " << page;
  }
  void LookAtEverything() {
    for (const std::string name :
         {"large", "tensor0", "tensor1", "tensor2", "tensor3", "tensor4", "tensor5"}) {
      const auto tensor = Find(name, false);
      if (!tensor) continue;
      for (uint64_t page = 0; page < NumPages(name); ++page) {
        LookAt(name, *tensor, page);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  void Commit() {
    const std::string state = absl::StrCat("state ", random_());
    const absl::Status status = store_->Commit(state);
    ASSERT_TRUE(status.ok()) << status;
    user_state_ = state;
    committed_ = current_;
    CheckCatalog();
  }
  void Snapshot() {
    const std::string label = absl::StrCat("label-", random_() % 6);
    const absl::Status status = store_->Snapshot(label);
    if (!user_state_) {
      ASSERT_TRUE(absl::IsFailedPrecondition(status)) << status;
    } else if (snapshots_.contains(label)) {
      ASSERT_TRUE(absl::IsAlreadyExists(status)) << status;
    } else {
      ASSERT_TRUE(status.ok()) << status;
      snapshots_[label] = {committed_, *user_state_};
      CheckCatalog();
    }
  }
  void Restore() {
    const std::string label = absl::StrCat("label-", random_() % 6);
    const absl::Status status = store_->Restore(label);
    if (!snapshots_.contains(label)) {
      ASSERT_TRUE(user_state_ ? absl::IsNotFound(status) : absl::IsFailedPrecondition(status))
          << status;
      return;
    }
    ASSERT_TRUE(status.ok()) << status;
    committed_ = current_ = snapshots_[label].state;
    user_state_ = snapshots_[label].user_state;
    // A tensor whose index was returned stays in the store, without pages if the snapshot lacks it.
    for (const auto& [name, index] : indexes_) current_[name];
    CheckCatalog();
    LookAtEverything();
  }
  void Drop() {
    const std::string label = absl::StrCat("label-", random_() % 6);
    const absl::Status status = store_->Drop(label);
    if (snapshots_.erase(label) == 0) {
      ASSERT_TRUE(user_state_ ? absl::IsNotFound(status) : absl::IsFailedPrecondition(status))
          << status;
      return;
    }
    ASSERT_TRUE(status.ok()) << status;
    CheckCatalog();
  }
  void Trim() {
    const auto bytes = store_->Trim();
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    CheckCatalog();
  }
  void Reopen() {
    store_.reset();
    Open();
    LookAtEverything();
  }
  void Kill() {
    const std::string next = folder_ / std::to_string(++kills_);
    std::filesystem::copy(place_, next, std::filesystem::copy_options::recursive);
    store_.reset();
    std::filesystem::remove_all(place_);
    place_ = next;
    Open();
    LookAtEverything();
  }

  const Shape shape_;
  std::mt19937_64 random_;
  TempFolder folder_;
  std::string place_ = folder_ / "0";
  int kills_ = 0;
  NamingIoEngine io_;
  std::unique_ptr<Store> store_;

  State current_;
  State committed_;
  std::map<uint64_t, Copy> transient_;
  std::map<std::string, Kept> snapshots_;
  std::optional<std::string> user_state_;
  std::map<std::string, TensorIndex> indexes_;  // valid until the store is closed
  std::map<Place, uint64_t> disk_;              // the last write of each unit
  uint64_t writes_ = 0;
};

class StoreModelTest : public ::testing::TestWithParam<Shape> {};

TEST_P(StoreModelTest, AgreesWithTheModel) {
  Model model(GetParam(), test::Seed());
  for (int step = 0; step < GetParam().steps && !HasFatalFailure(); ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    model.Step();
    if (HasFailure()) return;
    model.Check();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, StoreModelTest,
    ::testing::Values(Shape{"OneFolder", 4 * kUnit, 64 * kUnit, 1, true, 500},
                      Shape{"TwoFolders", 8 * kUnit, 100 * kUnit, 2, true, 500},
                      // These extents cross the chunks of free_space.
                      Shape{"LargePages", 3000 * kUnit, 33000 * kUnit, 1, false, 150}),
    [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace spillway::io
