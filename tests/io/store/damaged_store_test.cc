// SPDX-License-Identifier: Apache-2.0
//
// Reads damaged files of a store: a corpus of damage that people and file systems cause, each with
// the status codes that may report it, and seeded mutations that run through the fuzz targets.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/exhaustive.h"
#include "tests/io/store/fuzz/store_fuzz_targets.h"
#include "tests/io/store/simulated_store.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

namespace fs = std::filesystem;
using Code = absl::StatusCode;

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
void ReplaceIn(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << path;
  Overwrite(path, text.replace(at, from.size(), to));
}

void PutPipe(const std::string& path) {
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
}

struct Damage {
  const char* name;
  std::function<void(const std::string& root)> apply;
  std::vector<Code> codes;  // one of these is returned
};

const char kCatalogPath[] = "/a/spillway-catalog.sqlite";

const std::vector<Damage>& Corpus() {
  static const auto& corpus = *new std::vector<Damage>{
      {"the catalog is cut",
       [](auto& r) { fs::resize_file(r + kCatalogPath, 3 * 4096); },
       {Code::kDataLoss}},
      {"the catalog is cut inside a page",
       [](auto& r) { fs::resize_file(r + kCatalogPath, 3 * 4096 + 700); },
       {Code::kDataLoss}},
      {"the catalog is empty",
       [](auto& r) { fs::resize_file(r + kCatalogPath, 0); },
       {Code::kDataLoss}},
      {"the catalog is garbage",
       [](auto& r) { Overwrite(r + kCatalogPath, std::string(40960, 'g')); },
       {Code::kDataLoss}},
      {"the catalog is zeros",
       [](auto& r) { Overwrite(r + kCatalogPath, std::string(40960, '\0')); },
       {Code::kDataLoss}},
      {"the catalog is a folder",
       [](auto& r) {
         fs::remove(r + kCatalogPath);
         fs::create_directory(r + kCatalogPath);
       },
       {Code::kFailedPrecondition}},
      {"the catalog is a pipe",
       [](auto& r) { PutPipe(r + kCatalogPath); },
       {Code::kFailedPrecondition}},
      {"an identity is a pipe",
       [](auto& r) { PutPipe(r + "/b/spillway-store"); },
       {Code::kFailedPrecondition}},
      {"the witness is a pipe",
       [](auto& r) { PutPipe(r + "/a/spillway-commit"); },
       {Code::kFailedPrecondition}},
      {"a segment file is a pipe",
       [](auto& r) { PutPipe(r + "/b/spillway-segment-000000"); },
       {Code::kFailedPrecondition}},
      {"the catalog is gone", [](auto& r) { fs::remove(r + kCatalogPath); }, {Code::kDataLoss}},
      {"the catalog is another program's database",
       [](auto& r) {
         Overwrite(r + kCatalogPath, "");
         RunSql(r + kCatalogPath, "CREATE TABLE t (k)", /*vfs=*/nullptr);
       },
       {Code::kDataLoss}},
      {"a row was edited by hand",
       [](auto& r) { RunSql(r + kCatalogPath, "UPDATE pages SET checksum = 5", /*vfs=*/nullptr); },
       {Code::kDataLoss}},
      {"a page size that no store has",
       [](auto& r) {
         RunSql(r + kCatalogPath, "UPDATE meta SET value = 4294967296 WHERE key = 'page_bytes'");
       },
       {Code::kDataLoss}},
      {"a newer format",
       [](auto& r) {
         RunSql(r + kCatalogPath, "UPDATE meta SET value = 99 WHERE key = 'format_version'");
       },
       {Code::kFailedPrecondition}},
      {"no format",
       [](auto& r) { RunSql(r + kCatalogPath, "DELETE FROM meta WHERE key = 'format_version'"); },
       {Code::kDataLoss}},
      {"a table is gone",
       [](auto& r) { RunSql(r + kCatalogPath, "DROP TABLE free_space"); },
       {Code::kDataLoss}},
      {"the folders are swapped",
       [](auto& r) {
         fs::rename(r + "/a", r + "/c");
         fs::rename(r + "/b", r + "/a");
         fs::rename(r + "/c", r + "/b");
       },
       {Code::kInvalidArgument, Code::kFailedPrecondition}},
      {"a folder's files are gone",
       [](auto& r) {
         fs::remove_all(r + "/b");
         fs::create_directory(r + "/b");
       },
       {Code::kFailedPrecondition}},
      {"a segment is gone",
       [](auto& r) { fs::remove(r + "/b/spillway-segment-000000"); },
       {Code::kDataLoss}},
      {"a segment is short",
       [](auto& r) { fs::resize_file(r + "/b/spillway-segment-000001", 4096); },
       {Code::kDataLoss}},
      {"a segment is a folder",
       [](auto& r) {
         fs::remove(r + "/b/spillway-segment-000000");
         fs::create_directory(r + "/b/spillway-segment-000000");
       },
       {Code::kDataLoss, Code::kFailedPrecondition, Code::kUnavailable}},
      {"a segment is zeros",
       [](auto& r) {
         for (const std::string& name : FilesIn(r + "/b")) {
           const std::string path = r + "/b/" + name;
           if (name.find("segment") != std::string::npos)
             Overwrite(path, std::string(fs::file_size(path), '\0'));
         }
       },
       {Code::kDataLoss}},
      {"an identity is another store's",
       [](auto& r) {
         TempFolder other(FastPlace());
         ASSERT_TRUE(SimulatedStore(other.path(), {}, 1).Open().ok());
         fs::copy_file(other / "b/spillway-store", r + "/b/spillway-store",
                       fs::copy_options::overwrite_existing);
       },
       {Code::kInvalidArgument}},
      {"an identity was edited",
       [](auto& r) { ReplaceIn(r + "/a/spillway-store", "folders 2", "folders 3"); },
       {Code::kDataLoss}},
      {"an identity of a newer version",
       [](auto& r) { ReplaceIn(r + "/a/spillway-store", "version 2", "version 9"); },
       {Code::kFailedPrecondition}},
      {"an identity is somebody else's file",
       [](auto& r) { Overwrite(r + "/a/spillway-store", "my notes\n"); },
       {Code::kFailedPrecondition}},
      {"the first identity is gone",
       [](auto& r) { fs::remove(r + "/a/spillway-store"); },
       {Code::kDataLoss}},
      {"the witness was edited",
       [](auto& r) { ReplaceIn(r + "/a/spillway-commit", "number 0", "number 1"); },
       {Code::kDataLoss}},
      {"an old catalog was copied back",
       [](auto& r) {
         fs::copy_file(r + kCatalogPath, r + "/old");
         {
           SimulatedStore store(r, {}, 1000);
           ASSERT_TRUE(store.Open().ok());
           ASSERT_TRUE(store.Write("w", {0, 1, 2}).ok());
           ASSERT_TRUE(store.Commit().ok());
         }
         fs::rename(r + "/old", r + kCatalogPath);
       },
       {Code::kDataLoss}},
  };
  return corpus;
}

class DamagedStoreTest : public ::testing::TestWithParam<size_t> {};

TEST_P(DamagedStoreTest, IsReported) {
  const Damage& damage = Corpus()[GetParam()];
  SCOPED_TRACE(damage.name);
  TempFolder folder(FastPlace());
  {
    SimulatedStore store(folder.path(), {}, 1);
    for (const auto& call : SimulatedCalls()) ASSERT_TRUE(call(store).ok());
  }
  damage.apply(folder.path());
  if (HasFatalFailure()) return;
  SimulatedStore store(folder.path(), {}, 1000);
  absl::Status status = store.Open();
  if (status.ok()) status = store.CheckPages();
  if (status.ok()) status = store.Write("w", {0, 1, 2, 3});
  if (status.ok()) status = store.Commit();
  EXPECT_NE(std::find(damage.codes.begin(), damage.codes.end(), status.code()), damage.codes.end())
      << status;
  EXPECT_GT(status.message().size(), 20u) << status;
}

INSTANTIATE_TEST_SUITE_P(Corpus, DamagedStoreTest, ::testing::Range(size_t{0}, Corpus().size()));

// Makes mutations of a valid file or of empty bytes.
class Mutations {
 public:
  explicit Mutations(uint64_t seed) : random_(seed) {}
  std::string Of(std::string bytes) {
    for (uint64_t changes = 1 + random_() % 4; changes > 0; --changes) {
      const size_t at = random_() % (bytes.size() + 1);
      switch (random_() % 4) {
        case 0: bytes.insert(at, 1, static_cast<char>(random_())); break;
        case 1: bytes.erase(at, 1 + random_() % 8); break;
        case 2: bytes.insert(at, bytes.substr(random_() % (bytes.size() + 1), 20)); break;
        default:
          if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_() % 8));
      }
    }
    return bytes;
  }
  // Makes random changes, for the targets that take changes of a file.
  std::string Changes() {
    std::string changes;
    for (uint64_t count = 1 + random_() % 6; count > 0; --count) {
      for (int i = 0; i < 5; ++i) changes += static_cast<char>(random_());
    }
    return changes;
  }

 private:
  std::mt19937_64 random_;
};

TEST(StoreMutations, AreReadOrRefused) {
  Mutations mutations(test::Seed());
  TempFolder folder(FastPlace());
  {
    SimulatedStore store(folder.path(), {}, 1);
    ASSERT_TRUE(store.Open().ok());
    ASSERT_TRUE(store.Write("w", {0}).ok());
    ASSERT_TRUE(store.Commit().ok());
  }
  const auto read = [&](const char* name) {
    std::ifstream in(folder / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string identity = read("a/spillway-store");
  const std::string witness = read("a/spillway-commit");
  ASSERT_TRUE(FuzzIdentity(identity));
  ASSERT_TRUE(FuzzRuns("0+4 9+2 16383+1"));
  ASSERT_TRUE(FuzzCatalog(""));
  ASSERT_TRUE(FuzzLog(""));
  const int rounds = IsExhaustive() ? 5000 : 200;
  int catalogs = 0;
  int logs = 0;
  for (int i = 0; i < rounds; ++i) {
    SCOPED_TRACE(i);
    if (const std::string bytes = mutations.Of(identity); bytes != identity) {
      EXPECT_FALSE(FuzzIdentity(bytes)) << bytes;
    }
    (void)FuzzWitness(mutations.Of(witness));
    for (int j = 0; j < 20; ++j) (void)FuzzRuns(mutations.Of("0+4 9+2 16383+1"));
    catalogs += FuzzCatalog(mutations.Changes()) ? 1 : 0;
    logs += FuzzLog(mutations.Changes()) ? 1 : 0;
  }
  std::cout << rounds << " each; accepted: " << catalogs << " catalogs, " << logs << " logs\n";
  EXPECT_GT(rounds, catalogs);
}

}  // namespace
}  // namespace spillway::io
