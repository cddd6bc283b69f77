// SPDX-License-Identifier: Apache-2.0
//
// A user of the installed library. It registers tensors that together exceed its memory budgets,
// leases and changes them, commits and reopens the store. It checks that the store holds what was
// committed and nothing more, and restores a snapshot.
//
//   consumer STORE_FOLDER

#include <spillway/engine.h>
#include <spillway/version.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using spillway::Access;
using spillway::Engine;
using spillway::TensorId;
using spillway::TileRef;

constexpr int kTensors = 8;
constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 256;  // 1 MiB per tensor, 256 KiB per tile
constexpr int64_t kTileRows = 256;

spillway::TensorSpec SpecOf(int i) {
  return {.name = "layer." + std::to_string(i), .shape = {kRows, kColumns}, .tile_rows = kTileRows};
}

// Returns the initial value of element `index` of tensor `i`.
float First(int i, uint64_t index) { return static_cast<float>(i * 1000 + index % 997); }

absl::StatusOr<std::unique_ptr<Engine>> Open(const std::string& folder, spillway::OpenMode mode) {
  spillway::EngineOptions options;
  options.store = {folder};
  options.mode = mode;
  options.device_bytes = spillway::kMiB;
  options.pinned_bytes = 4 * spillway::kMiB;
  options.page_bytes = 64 * spillway::kKiB;
  return Engine::Open(std::move(options));
}

absl::StatusOr<std::vector<TensorId>> Register(Engine& engine, bool expect_stored) {
  std::vector<TensorId> ids;
  for (int i = 0; i < kTensors; ++i) {
    const auto reader = [&](uint64_t offset_bytes, std::span<std::byte> out) -> absl::Status {
      if (expect_stored) return absl::InternalError("the reader was called for a stored tensor");
      for (size_t at = 0; at < out.size(); at += sizeof(float)) {
        const float value = First(i, (offset_bytes + at) / sizeof(float));
        std::memcpy(&out[at], &value, sizeof value);
      }
      return absl::OkStatus();
    };
    absl::StatusOr<TensorId> id = engine.Register(SpecOf(i), reader);
    if (!id.ok()) return id.status();
    ids.push_back(*id);
  }
  return ids;
}

// Adds `delta` to every element, one tile at a time, on a stream. Ends the step.
absl::Status Add(Engine& engine, const std::vector<TensorId>& ids, float delta) {
  absl::StatusOr<std::unique_ptr<spillway::Stream>> stream = engine.CreateStream();
  if (!stream.ok()) return stream.status();
  for (const TensorId id : ids) {
    for (uint64_t tile = 0; tile < engine.Spec(id).num_tiles(); ++tile) {
      absl::StatusOr<spillway::Lease> lease =
          engine.Acquire(TileRef(id, tile), Access::kReadWrite, stream->get());
      if (!lease.ok()) return lease.status();
      const absl::Status launched = (*stream)->Launch([values = lease->as<float>(), delta] {
        for (float& value : values) value += delta;
      });
      if (!launched.ok()) return launched;
    }
  }
  if (absl::Status done = (*stream)->Synchronize(); !done.ok()) return done;
  return engine.EndStep();
}

absl::Status Verify(Engine& engine, const std::vector<TensorId>& ids, float added) {
  for (int i = 0; i < kTensors; ++i) {
    for (uint64_t tile = 0; tile < kRows / kTileRows; ++tile) {
      absl::StatusOr<spillway::Lease> lease = engine.Acquire(TileRef(ids[i], tile), Access::kRead);
      if (!lease.ok()) return lease.status();
      const uint64_t first = tile * kTileRows * kColumns;
      const std::span<const float> values = lease->as<float>();
      for (size_t j = 0; j < values.size(); ++j) {
        if (values[j] == First(i, first + j) + added) continue;
        return absl::DataLossError("layer." + std::to_string(i) + ", element " +
                                   std::to_string(first + j) + " is " + std::to_string(values[j]));
      }
    }
  }
  return absl::OkStatus();
}

// Registers the tensors, changes them and commits. Then changes them once more without a commit.
absl::Status Train(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Open(folder, spillway::OpenMode::kCreate);
  if (!engine.ok()) return engine.status();
  absl::StatusOr<std::vector<TensorId>> ids = Register(**engine, /*expect_stored=*/false);
  if (!ids.ok()) return ids.status();
  if (absl::Status added = Add(**engine, *ids, 1); !added.ok()) return added;
  if (absl::Status done = (*engine)->Commit("step 1"); !done.ok()) return done;
  if (absl::Status added = Add(**engine, *ids, 5); !added.ok()) return added;
  if (absl::Status same = Verify(**engine, *ids, 6); !same.ok()) return same;
  const spillway::EngineStats stats = (*engine)->Stats();
  std::printf("moved through %s: %llu bytes read, %llu written\n", stats.io_engine.c_str(),
              static_cast<unsigned long long>(stats.nvme.read_bytes),
              static_cast<unsigned long long>(stats.nvme.written_bytes));
  if (stats.nvme.written_bytes == 0) return absl::InternalError("nothing went to the store");
  return absl::OkStatus();
}

// Reopens the store. Checks that kCreate refuses a store that exists, and that the store holds
// exactly the commit.
absl::Status Resume(const std::string& folder) {
  if (Open(folder, spillway::OpenMode::kCreate).status().code() !=
      absl::StatusCode::kFailedPrecondition) {
    return absl::InternalError("kCreate took a store that exists");
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = Open(folder, spillway::OpenMode::kOpenOrCreate);
  if (!engine.ok()) return engine.status();
  if ((*engine)->UserState() != std::optional<std::string>("step 1")) {
    return absl::DataLossError("the user state is not the commit's");
  }
  absl::StatusOr<std::vector<TensorId>> ids = Register(**engine, /*expect_stored=*/true);
  if (!ids.ok()) return ids.status();
  return Verify(**engine, *ids, 1);
}

// Reopens the store again, takes a snapshot of the commit, commits a change and restores the
// snapshot.
absl::Status GoBack(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Open(folder, spillway::OpenMode::kOpenOrCreate);
  if (!engine.ok()) return engine.status();
  absl::StatusOr<std::vector<TensorId>> ids = Register(**engine, /*expect_stored=*/true);
  if (!ids.ok()) return ids.status();
  if (absl::Status taken = (*engine)->Snapshot("one"); !taken.ok()) return taken;
  if (absl::Status added = Add(**engine, *ids, 2); !added.ok()) return added;
  if (absl::Status done = (*engine)->Commit("step 2"); !done.ok()) return done;
  if (absl::Status same = Verify(**engine, *ids, 3); !same.ok()) return same;
  if (absl::Status restored = (*engine)->Restore("one"); !restored.ok()) return restored;
  if ((*engine)->UserState() != std::optional<std::string>("step 1")) {
    return absl::DataLossError("the user state is not the snapshot's");
  }
  if (absl::Status same = Verify(**engine, *ids, 1); !same.ok()) return same;
  const absl::StatusOr<std::vector<spillway::SnapshotInfo>> list = (*engine)->Snapshots();
  if (!list.ok()) return list.status();
  if (list->size() != 1 || list->front().label != "one" || list->front().number != 1) {
    return absl::DataLossError("the list of snapshots is another");
  }
  return (*engine)->Drop("one");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer STORE_FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  for (const auto& part : {Train, Resume, GoBack}) {
    if (const absl::Status status = part(folder); !status.ok()) {
      std::fprintf(stderr, "consumer: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  std::printf("consumer: spillway %s keeps what it was given\n",
              std::string(spillway::Version()).c_str());
  return 0;
}
