// SPDX-License-Identifier: Apache-2.0

#include "tests/io/store/fuzz/store_fuzz_targets.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "io/store/free_space.h"
#include "io/store/sqlite_page.h"
#include "io/store/store.h"
#include "io/store/store_folder.h"
#include "io/store/witness.h"
#include "src/base/status_macros.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

constexpr char kStoreId[] = "00112233445566778899aabbccddeeff";
constexpr char kCatalog[] = "spillway-catalog.sqlite";
constexpr uint64_t kPages = 5;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << what << "\n";
  std::abort();
}

void Put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
std::string Get(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

StoreOptions Options(const std::string& folder) {
  StoreOptions options;
  options.folders = {folder};
  options.page_bytes = kTestPageBytes;
  options.segment_bytes = 4 * kTestPageBytes;
  return options;
}

absl::Status WriteAndCommit(Store& store, const NamingIoEngine& io, uint64_t version) {
  for (const char* name : {"w", "v"}) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorIndex> tensor, store.FindTensor(name));
    if (!tensor) {
      SPILLWAY_ASSIGN_OR_RETURN(tensor, store.AddTensor({name, "{}", kPages}, false));
    }
    if (store.Tensor(*tensor).num_pages < kPages) return absl::OkStatus();
    for (uint64_t page = version % 2; page < kPages; page += 2) {
      SPILLWAY_RETURN_IF_ERROR(WritePage(store, io, *tensor, page, version));
    }
  }
  return store.Commit(absl::StrCat("state ", version));
}

// The files of a valid store with commits, snapshots and free space: closed, and as a crash leaves
// them.
struct GoodStore {
  GoodStore() {
    const TempFolder folder(FastPlace());
    NamingIoEngine io;
    auto store = Store::Open(Options(folder.path()), &io);
    Require(store.ok(), "making a store");
    for (uint64_t version = 1; version <= 4; ++version) {
      Require(WriteAndCommit(**store, io, version).ok(), "a commit");
      if (version < 3) Require((*store)->Snapshot(absl::StrCat("s", version)).ok(), "a snapshot");
    }
    crashed = Files(folder.path());
    store->reset();
    closed = Files(folder.path());
  }
  static std::map<std::string, std::string> Files(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : FilesIn(folder)) files[name] = Get(folder + "/" + name);
    files.erase(absl::StrCat(kCatalog, "-shm"));
    return files;
  }
  std::map<std::string, std::string> closed;
  std::map<std::string, std::string> crashed;
};

const GoodStore& Good() {
  static const GoodStore& good = *new GoodStore;
  return good;
}

std::string Changed(std::string file, std::string_view changes) {
  for (; changes.size() >= 5; changes.remove_prefix(5)) {
    uint32_t at = 0;
    std::memcpy(&at, changes.data(), sizeof at);
    file[at % file.size()] = changes[4];
  }
  return file;
}

// Opens the store, reads it, then commits, restores, drops and trims.
absl::Status UseStore(const std::string& folder) {
  NamingIoEngine io;
  StoreOptions options = Options(folder);
  options.page_bytes = 0;
  SPILLWAY_ASSIGN_OR_RETURN(const auto store, Store::Open(options, &io));
  for (const char* name : {"w", "v", "absent"}) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto tensor, store->FindTensor(name));
    for (uint64_t page = 0; tensor && page < store->Tensor(*tensor).num_pages && page < 3000;
         ++page) {
      SPILLWAY_ASSIGN_OR_RETURN(const auto record, store->FindPage(*tensor, page));
      if (!record) continue;
      SPILLWAY_RETURN_IF_ERROR(store->File(record->extent).status());
    }
  }
  SPILLWAY_RETURN_IF_ERROR(store->Snapshots().status());
  SPILLWAY_RETURN_IF_ERROR(WriteAndCommit(*store, io, 5));
  for (const char* label : {"s1", "s2"}) {
    SPILLWAY_RETURN_IF_ERROR(store->Restore(label));
    SPILLWAY_RETURN_IF_ERROR(store->Drop(label));
  }
  SPILLWAY_RETURN_IF_ERROR(WriteAndCommit(*store, io, 6));
  return store->Trim().status();
}

bool UseFiles(const std::map<std::string, std::string>& files) {
  const TempFolder folder(FastPlace());
  for (const auto& [name, bytes] : files) Put(folder / name, bytes);
  return UseStore(folder.path()).ok();
}

}  // namespace

bool FuzzIdentity(std::string_view bytes) {
  const TempFolder folder(FastPlace());
  Put(folder / "spillway-store", bytes);
  const auto opened = StoreFolder::Open(folder.path(), StoreFolder::Mode::kExisting);
  Require(opened.ok(), "opening a folder");
  const auto identity = opened->ReadIdentity();
  if (!identity.ok()) return false;
  Require(identity->has_value(), "a file is no identity and no error");
  Require((*identity)->index < (*identity)->num_folders, "an index beyond the folders");
  return true;
}

bool FuzzWitness(std::string_view bytes) {
  const TempFolder folder(FastPlace());
  Put(folder / "spillway-commit", bytes);
  CatalogCommit last;
  last.number = 3;
  std::vector<StoreFolder> folders;
  folders.push_back(*StoreFolder::Open(folder.path(), StoreFolder::Mode::kExisting));
  return Witness(folders, kStoreId).Check(last).ok();
}

bool FuzzRuns(std::string_view bytes) {
  const auto runs = ParseRuns(bytes);
  if (!runs) return false;
  Require(ParseRuns(FormatRuns(*runs)) == runs, "runs are not read as they are written");
  uint64_t end = 0;
  for (const UnitRun& run : *runs) {
    Require(run.count > 0, "an empty run");
    Require(run.first > end || (end == 0 && run.first == 0), "runs that touch");
    end = uint64_t{run.first} + run.count;
    Require(end <= kChunkUnits, "a run beyond its chunk");
  }
  return true;
}

bool FuzzCatalog(std::string_view bytes) {
  auto files = Good().closed;
  std::string& catalog = files[kCatalog];
  catalog = Changed(std::move(catalog), bytes);
  for (size_t at = 0; at < catalog.size(); at += kSqlitePageBytes) {
    SealPage(std::as_writable_bytes(std::span(catalog)).subspan(at, kSqlitePageBytes),
             at / kSqlitePageBytes + 1);
  }
  return UseFiles(files);
}

bool FuzzLog(std::string_view bytes) {
  auto files = Good().crashed;
  std::string& log = files[absl::StrCat(kCatalog, "-wal")];
  log = Changed(std::move(log), bytes);
  return UseFiles(files);
}

}  // namespace spillway::io
