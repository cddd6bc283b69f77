// SPDX-License-Identifier: Apache-2.0
//
// A store with a record of what it promised to hold, and a short run with every kind of change: a
// store in two folders, commits, a removed tensor, snapshots, a restore, a drop, a trim, and
// reopening in between. Tests inject a fault into the run and then check whether a promise was
// broken.

#ifndef SPILLWAY_TESTS_IO_STORE_SIMULATED_STORE_H_
#define SPILLWAY_TESTS_IO_STORE_SIMULATED_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/store.h"
#include "src/base/status_macros.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {

// What a store holds. Every write of a page has its own version, so the versions alone show what
// shares an extent and what does not.
struct StoreState {
  std::optional<std::string> user_state;
  std::map<std::string, std::map<uint64_t, uint64_t>> tensors;  // name, page, version
  std::map<std::string, StoreState> snapshots;

  std::set<uint64_t> Versions() const {
    std::set<uint64_t> versions;
    for (const auto& [name, pages] : tensors) {
      for (const auto& [page, version] : pages) versions.insert(version);
    }
    for (const auto& [label, snapshot] : snapshots) versions.merge(snapshot.Versions());
    return versions;
  }
};

inline constexpr uint64_t kSimulatedPages = 6;
inline const char* const kSimulatedTensors[] = {"w", "v"};

// An open store and what it should hold.
class SimulatedStore {
 public:
  SimulatedStore(std::string root, StoreState state, uint64_t next_version)
      : root_(std::move(root)), state_(std::move(state)), next_version_(next_version) {}

  absl::Status Open() {
    StoreOptions options;
    options.folders = {root_ + "/a", root_ + "/b"};
    options.page_bytes = kTestPageBytes;
    options.segment_bytes = 4 * kTestPageBytes;  // so that commits also make files
    store_.reset();
    SPILLWAY_ASSIGN_OR_RETURN(store_, Store::Open(options, &io_));
    return absl::OkStatus();
  }
  void Close() { store_.reset(); }
  // Writes new versions of a tensor's pages, each twice, so that the first copy's extent is free
  // again before the commit.
  absl::Status Write(const std::string& name, const std::vector<uint64_t>& pages) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorIndex> tensor, store_->FindTensor(name));
    if (!tensor) {
      SPILLWAY_ASSIGN_OR_RETURN(tensor, store_->AddTensor({name, "{}", kSimulatedPages}, false));
    }
    for (const uint64_t page : pages) {
      for (int copy = 0; copy < 2; ++copy) {
        SPILLWAY_RETURN_IF_ERROR(WritePage(*store_, io_, *tensor, page, next_version_));
        state_.tensors[name][page] = next_version_++;
      }
    }
    return absl::OkStatus();
  }
  absl::Status Forget(const std::string& name, uint64_t page) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorIndex> tensor, store_->FindTensor(name));
    store_->Forget(*tensor, page);
    state_.tensors[name].erase(page);
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorIndex> tensor, store_->FindTensor(name));
    store_->RemoveTensor(*tensor);
    state_.tensors.erase(name);
    return absl::OkStatus();
  }
  absl::Status Commit() {
    state_.user_state = absl::StrCat("state ", next_version_);
    return store_->Commit(*state_.user_state);
  }
  absl::Status Snapshot(const std::string& label) {
    StoreState snapshot = state_;
    snapshot.snapshots.clear();
    state_.snapshots[label] = std::move(snapshot);
    return store_->Snapshot(label);
  }
  absl::Status Restore(const std::string& label) {
    const StoreState snapshot = state_.snapshots.at(label);
    state_.user_state = snapshot.user_state;
    state_.tensors = snapshot.tensors;
    return store_->Restore(label);
  }
  absl::Status Drop(const std::string& label) {
    state_.snapshots.erase(label);
    return store_->Drop(label);
  }
  absl::Status Trim() { return store_->Trim().status(); }
  bool HasSnapshots() const { return !absl::IsUnimplemented(store_->Snapshots().status()); }

  const StoreState& state() const { return state_; }
  uint64_t next_version() const { return next_version_; }

  // Checks that each page in the store matches its checksum, as a reader does.
  absl::Status CheckPages() {
    PageBuffer found;
    for (const char* name : kSimulatedTensors) {
      SPILLWAY_ASSIGN_OR_RETURN(const auto tensor, store_->FindTensor(name));
      for (uint64_t page = 0; tensor && page < kSimulatedPages; ++page) {
        SPILLWAY_ASSIGN_OR_RETURN(const auto record, store_->FindPage(*tensor, page));
        if (!record) continue;
        SPILLWAY_ASSIGN_OR_RETURN(const FileUse file, store_->File(record->extent));
        const ssize_t got = ::pread(io_.fd(*file), found.span().data(), kTestPageBytes,
                                    static_cast<off_t>(record->extent.offset));
        if (got != static_cast<ssize_t>(kTestPageBytes) ||
            record->checksum != Checksum(found.span())) {
          return absl::DataLossError(
              absl::StrCat("page ", page, " of ", name, " does not match its checksum"));
        }
      }
    }
    return absl::OkStatus();
  }

  // Returns how the store differs from `state`; empty if it does not.
  std::string Difference(const StoreState& state) {
    const std::optional<std::string> user_state = store_->UserState();
    if (user_state != state.user_state) {
      return absl::StrCat("user state '", user_state.value_or("(none)"), "', not '",
                          state.user_state.value_or("(none)"), "'");
    }
    for (const char* name : kSimulatedTensors) {
      const auto tensor = store_->FindTensor(name);
      if (!tensor.ok()) return tensor.status().ToString();
      const auto wanted = state.tensors.find(name);
      if (tensor->has_value() != (wanted != state.tensors.end()))
        return absl::StrCat("tensor ", name, tensor->has_value() ? " exists" : " is missing");
      if (!*tensor) continue;
      for (uint64_t page = 0; page < kSimulatedPages; ++page) {
        const auto found = store_->FindPage(**tensor, page);
        if (!found.ok()) return found.status().ToString();
        const auto version = wanted->second.find(page);
        if (version == wanted->second.end()) {
          if (*found) return absl::StrCat("page ", page, " of ", name, " exists");
        } else if (const auto same = PageIs(*store_, io_, **tensor, page, version->second); !same) {
          return absl::StrCat(name, ": ", same.message());
        }
      }
    }
    return SnapshotDifference(state);
  }

 private:
  std::string SnapshotDifference(const StoreState& state) {
    const uint64_t used_bytes = state.Versions().size() * kTestPageBytes;
    if (store_->used_bytes() != used_bytes)
      return absl::StrCat(store_->used_bytes(), " bytes are in use, not ", used_bytes);
    if (!HasSnapshots()) return "";
    const auto found = store_->Snapshots();
    if (!found.ok()) return found.status().ToString();
    if (found->size() != state.snapshots.size())
      return absl::StrCat(found->size(), " snapshots, not ", state.snapshots.size());
    for (const SnapshotRecord& snapshot : *found) {
      const auto wanted = state.snapshots.find(snapshot.label);
      if (wanted == state.snapshots.end() || wanted->second.user_state != snapshot.user_state)
        return absl::StrCat("snapshot ", snapshot.label, " is not what was kept");
    }
    return "";
  }

  const std::string root_;
  NamingIoEngine io_;
  std::unique_ptr<Store> store_;
  StoreState state_;
  uint64_t next_version_;
};

// Returns the calls of the run in order. Each must return before the next begins.
inline std::vector<std::function<absl::Status(SimulatedStore&)>> SimulatedCalls() {
  using S = SimulatedStore;
  const auto commit = [](std::vector<uint64_t> w, std::vector<uint64_t> v) {
    return [w = std::move(w), v = std::move(v)](S& s) -> absl::Status {
      SPILLWAY_RETURN_IF_ERROR(s.Write("w", w));
      if (!v.empty()) SPILLWAY_RETURN_IF_ERROR(s.Write("v", v));
      return s.Commit();
    };
  };
  const auto if_snapshots = [](std::function<absl::Status(S&)> call) {
    return [call = std::move(call)](S& s) { return s.HasSnapshots() ? call(s) : absl::OkStatus(); };
  };
  return {
      [](S& s) { return s.Open(); },
      commit({0, 1, 2, 3, 4, 5}, {}),
      commit({0, 2}, {0, 1}),
      if_snapshots([](S& s) { return s.Snapshot("first"); }),
      [](S& s) -> absl::Status {
        SPILLWAY_RETURN_IF_ERROR(s.Write("w", {0, 1, 3}));
        SPILLWAY_RETURN_IF_ERROR(s.Forget("w", 5));
        return s.Commit();
      },
      [](S& s) { return s.Open(); },
      commit({0, 5}, {1}),
      if_snapshots([](S& s) { return s.Snapshot("second"); }),
      if_snapshots([](S& s) { return s.Restore("first"); }),
      commit({1, 2}, {3}),
      [](S& s) -> absl::Status {
        SPILLWAY_RETURN_IF_ERROR(s.Write("v", {2}));
        SPILLWAY_RETURN_IF_ERROR(s.Remove("v"));
        SPILLWAY_RETURN_IF_ERROR(s.Write("w", {4}));
        return s.Commit();
      },
      if_snapshots([](S& s) { return s.Drop("first"); }),
      commit({0, 1, 2, 3, 5}, {0, 1}),
      if_snapshots([](S& s) { return s.Trim(); }),
      commit({0, 1}, {}),
      [](S& s) { return s.Open(); },
      commit({2}, {}),
  };
}

// Continues with a store after a fault: a commit, a reopening, and a restore of each snapshot.
// Returns what is wrong; empty if nothing is.
inline std::string GoOn(SimulatedStore& store) {
  const auto step = [&](const char* what, const absl::Status& status) {
    if (!status.ok()) return absl::StrCat(what, ": ", status.ToString());
    const std::string difference = store.Difference(store.state());
    return difference.empty() ? "" : absl::StrCat("after ", what, ": ", difference);
  };
  absl::Status status = store.Write("w", {0, 1, 2, 3, 4});
  if (status.ok()) status = store.Commit();
  if (std::string wrong = step("one more commit", status); !wrong.empty()) return wrong;
  if (std::string wrong = step("opening again", store.Open()); !wrong.empty()) return wrong;
  for (const auto& [label, snapshot] : StoreState(store.state()).snapshots) {
    if (std::string wrong = step("restoring", store.Restore(label)); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_SIMULATED_STORE_H_
