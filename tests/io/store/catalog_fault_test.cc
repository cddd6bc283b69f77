// SPDX-License-Identifier: Apache-2.0
//
// Injects each kind of fault at each operation of SQLite on the catalog during a run of the store.
// Every call succeeds, or fails with one error and leaves the promised state. False content is
// detected before it is used.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/sqlite.h"
#include "io/store/sqlite_vfs.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "src/base/status_macros.h"
#include "tests/exhaustive.h"
#include "tests/io/store/simulated_store.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using Op = SqliteCall::Op;

enum class Kind {
  kEio,
  kEnospc,
  kReadRot,           // one bit of what is read is flipped, once
  kWriteRot,          // one bit of what is written is flipped, permanently
  kLostWrite,         // a write to the log succeeds and is not made
  kLostCatalogWrite,  // the same for the database file
  kTornWrite,         // half of a write is made, then it fails
  kLostSync,
};

// Whether the fault can affect the call. A lost write has a kind for each file: in the log no page
// replaces another, but a page of the database file that keeps its old content has a valid seal
// (ALostWriteToTheDatabaseFileIsFoundByTheCheck below).
bool Befalls(Kind kind, const SqliteCall& call) {
  const Op op = call.op;
  switch (kind) {
    case Kind::kEio: return true;
    case Kind::kEnospc: return op == Op::kWrite;
    case Kind::kReadRot: return op == Op::kRead;
    case Kind::kWriteRot:
    case Kind::kTornWrite: return op == Op::kWrite;
    case Kind::kLostWrite: return op == Op::kWrite && call.path.ends_with("-wal");
    case Kind::kLostCatalogWrite: return op == Op::kWrite && call.path.ends_with(".sqlite");
    case Kind::kLostSync: return op == Op::kSync;
  }
  return false;
}

// Whether the fault removes or changes nothing that was reported as written. If so, everything must
// be as promised after the fault.
bool IsHonest(Kind kind) { return kind != Kind::kWriteRot && kind != Kind::kLostWrite; }

// Injects the fault into operation number `at` (from 0) of those that it can affect.
class FaultyCatalog {
 public:
  FaultyCatalog(Kind kind, int at, uint64_t random) : kind_(kind), at_(at), random_(random) {
    SetSqliteHook([this](const SqliteCall& call) { return Meet(call); });
  }
  ~FaultyCatalog() { SetSqliteHook({}); }
  bool was_met() const { return calls_ > at_; }

 private:
  int Meet(const SqliteCall& call) {
    if (!Befalls(kind_, call) || calls_++ != at_) return 0;
    switch (kind_) {
      case Kind::kEio: return EIO;
      case Kind::kEnospc: return ENOSPC;
      case Kind::kLostWrite:
      case Kind::kLostCatalogWrite:
      case Kind::kLostSync: return kSqliteCallIsDropped;
      case Kind::kReadRot:
      case Kind::kWriteRot: {
        const uint64_t bit = random_ % (call.bytes.size() * 8);
        call.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        return 0;
      }
      case Kind::kTornWrite: {
        const int fd = ::open(std::string(call.path).c_str(), O_WRONLY | O_CLOEXEC);
        const size_t half = std::min(call.bytes.size(), (call.bytes.size() / 2 + 511) / 512 * 512);
        EXPECT_EQ(::pwrite(fd, call.bytes.data(), half, call.offset), static_cast<ssize_t>(half));
        ::close(fd);
        return EIO;
      }
    }
    return 0;
  }

  const Kind kind_;
  const int at_;
  const uint64_t random_;
  int calls_ = 0;
};

bool IsClear(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsDataLoss(status);
}

bool IsReport(const std::string& difference) {
  return difference.starts_with("UNAVAILABLE: ") || difference.starts_with("DATA_LOSS: ");
}

// Runs the calls with one fault until a call fails, then reopens the store and continues. Returns
// what is wrong; empty if nothing is.
std::string RunWith(Kind kind, int at, uint64_t random, bool* was_met) {
  TempFolder folder(FastPlace());
  StoreState promised;
  StoreState in_flight;
  uint64_t next_version = 0;
  {
    SimulatedStore store(folder.path(), {}, 1);
    const FaultyCatalog faulty(kind, at, random);
    for (const auto& call : SimulatedCalls()) {
      const absl::Status status = call(store);
      in_flight = store.state();
      next_version = store.next_version();
      if (!status.ok() && !IsClear(status)) return absl::StrCat("unclear: ", status.ToString());
      if (!status.ok()) break;
      promised = store.state();
      // Difference reads the store, so it may meet the fault or report the damage.
      const std::string difference = store.Difference(promised);
      if (!difference.empty() && !IsReport(difference)) {
        return absl::StrCat("in a call that succeeded: ", difference);
      }
    }
    *was_met = faulty.was_met();
  }
  std::string differences;
  for (const StoreState& state : {promised, in_flight}) {
    SimulatedStore store(folder.path(), state, next_version);
    const absl::Status status = store.Open();
    if (absl::IsDataLoss(status) && !IsHonest(kind)) return "";
    if (!status.ok()) return absl::StrCat("reopening: ", status.ToString());
    const std::string difference = store.Difference(state);
    if (difference.find("DATA_LOSS") != std::string::npos && !IsHonest(kind)) return "";
    const std::string wrong = difference.empty() ? GoOn(store) : difference;
    if (wrong.empty()) return "";
    if (wrong.find("DATA_LOSS") != std::string::npos && !IsHonest(kind)) return "";
    absl::StrAppend(&differences, wrong, "; or ");
  }
  return differences;
}

class CatalogFaultTest : public ::testing::TestWithParam<Kind> {};

TEST_P(CatalogFaultTest, EveryCallSucceedsOrFailsAndLeavesWhatWasPromised) {
  std::mt19937_64 random(test::Seed());
  const int stride = IsExhaustive() ? 1 : 12;
  int points = 0;
  bool was_met = true;
  for (int at = static_cast<int>(random() % static_cast<uint64_t>(stride)); was_met; at += stride) {
    const std::string wrong = RunWith(GetParam(), at, random(), &was_met);
    ASSERT_EQ(wrong, "") << "operation " << at;
    ++points;
  }
  EXPECT_GT(points, 1);
  std::cout << points - 1 << " points\n";
}

std::string NameOf(const ::testing::TestParamInfo<Kind>& kind) {
  static const char* const names[] = {"Eio",       "Enospc",           "ReadRot",   "WriteRot",
                                      "LostWrite", "LostCatalogWrite", "TornWrite", "LostSync"};
  return names[static_cast<int>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, CatalogFaultTest,
                         ::testing::Values(Kind::kEio, Kind::kEnospc, Kind::kReadRot,
                                           Kind::kWriteRot, Kind::kLostWrite, Kind::kTornWrite,
                                           Kind::kLostSync),
                         NameOf);

// --- A page of the database file that keeps its old content ---

enum class Told : uint8_t { kByTheRun, kByOpening, kByTheCheckAlone, kByNobody };

absl::StatusOr<bool> CheckFindsDamage(const std::string& root) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto view,
                            StoreView::Open({root + "/a", root + "/b"}, StoreView::Wanted::kAlone));
  NamingIoEngine io;  // no page is read
  SPILLWAY_ASSIGN_OR_RETURN(const auto report, CheckStore(*view, &io, {.read_pages = false}));
  return report.damage > 0;
}

absl::StatusOr<Told> WhoTells(int at, bool* was_met) {
  TempFolder folder(FastPlace());
  absl::Status ran;
  StoreState state;
  {
    SimulatedStore store(folder.path(), {}, 1);
    const FaultyCatalog faulty(Kind::kLostCatalogWrite, at, 0);
    for (const auto& call : SimulatedCalls()) {
      if (ran.ok()) ran = call(store);
    }
    state = store.state();
    store.Close();  // writes the log into the database file
    *was_met = faulty.was_met();
  }
  if (absl::IsDataLoss(ran)) return Told::kByTheRun;
  const absl::StatusOr<bool> found = CheckFindsDamage(folder.path());
  if (!found.ok() && !absl::IsDataLoss(found.status())) return found.status();
  SimulatedStore store(folder.path(), state, 0);
  const absl::Status opened = store.Open();
  if (absl::IsDataLoss(opened)) return Told::kByOpening;
  SPILLWAY_RETURN_IF_ERROR(opened);
  if (!found.ok() || *found) return Told::kByTheCheckAlone;
  SPILLWAY_RETURN_IF_ERROR(ran);  // failed on an older state that the check accepted
  const std::string difference = store.Difference(state);
  return difference.empty() ? absl::StatusOr<Told>(Told::kByNobody)
                            : absl::InternalError(difference);
}

// Opening reads only a few pages of the catalog, so the check finds most such losses: the digest
// covers every row. A loss that nothing reports has done no harm.
TEST(CatalogFault, ALostWriteToTheDatabaseFileIsFoundByTheCheck) {
  int times[4] = {};
  bool was_met = true;
  for (int at = 0; was_met; ++at) {
    const absl::StatusOr<Told> told = WhoTells(at, &was_met);
    ASSERT_TRUE(told.ok()) << "write " << at << ": " << told.status();
    if (was_met) ++times[static_cast<int>(*told)];
  }
  std::cout << "told by the run " << times[0] << ", by opening " << times[1]
            << ", by the check alone " << times[2] << ", by nobody " << times[3] << "\n";
  EXPECT_GT(times[static_cast<int>(Told::kByTheCheckAlone)], 0);
}

// --- A log whose pages cannot be moved into the database file ---

class CatalogLogTest : public StoreTest {
 protected:
  CatalogLogTest() {
    SetSqliteHook([this](const SqliteCall& call) {
      const bool is_checkpoint = call.op == Op::kWrite && call.path.ends_with(".sqlite");
      return checkpoints_fail_ && is_checkpoint ? EIO : 0;
    });
    MakeStore(Options());
    StoreOptions options = Options();
    options.announce = [this](std::string_view what) { announced_.emplace_back(what); };
    store_ = Open(options);
  }
  ~CatalogLogTest() override {
    store_.reset();
    SetSqliteHook({});
  }
  // Commits with user states of 100 pages each, so that the log gets 100 to 250.
  void Commit(int times) {
    for (int i = 0; i < times; ++i) {
      user_state_ = std::string(400'000, static_cast<char>('a' + num_commits_++ % 26));
      ASSERT_TRUE(WritePage(*store_, io_, **store_->FindTensor("w"), 0, num_commits_).ok());
      ASSERT_TRUE(store_->Commit(user_state_).ok());
    }
  }
  uint64_t LogBytes() { return std::filesystem::file_size(catalog_ + "-wal"); }

  const std::string catalog_ = Options().folders[0] + "/spillway-catalog.sqlite";
  bool checkpoints_fail_ = false;
  std::vector<std::string> announced_;
  std::unique_ptr<Store> store_;
  std::string user_state_;
  uint64_t num_commits_ = 1;
};

TEST_F(CatalogLogTest, IsStartedAgainAfterACommitOfManyPages) {
  Commit(1);
  const uint64_t bytes = LogBytes();
  Commit(10);
  EXPECT_LT(LogBytes(), 2 * bytes);
  EXPECT_THAT(announced_, ::testing::IsEmpty());
}

TEST_F(CatalogLogTest, AFileThatCannotBeWrittenIsAnnouncedOnceAndNothingIsLost) {
  checkpoints_fail_ = true;
  Commit(10);
  EXPECT_THAT(announced_, ::testing::ElementsAre(::testing::AllOf(
                              ::testing::HasSubstr("(EIO)"), ::testing::HasSubstr(catalog_),
                              ::testing::HasSubstr("commits succeed"))));
  store_.reset();
  checkpoints_fail_ = false;
  store_ = Open(Options());
  EXPECT_EQ(store_->UserState(), user_state_);
  EXPECT_TRUE(PageIs(*store_, io_, **store_->FindTensor("w"), 0, num_commits_));
}

TEST_F(CatalogLogTest, AReaderBesideOneLargeCommitIsNotAnnounced) {
  auto reader = SqliteDatabase::Open(catalog_, SqliteDatabase::Mode::kReadShared);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Execute("SELECT * FROM last_commit").ok());
  ASSERT_TRUE(store_->Commit(std::string(4'000'000, 'x')).ok());
  reader->reset();
  Commit(10);
  EXPECT_THAT(announced_, ::testing::IsEmpty());
}

TEST_F(CatalogLogTest, AReaderInTheWayIsAnnouncedOnceAndTheLogIsStartedAgainAfterIt) {
  auto reader = SqliteDatabase::Open(catalog_, SqliteDatabase::Mode::kReadShared);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Execute("SELECT * FROM last_commit").ok());
  Commit(2);
  EXPECT_THAT(announced_, ::testing::IsEmpty()) << "the log is still short";
  Commit(10);
  EXPECT_THAT(announced_, ::testing::ElementsAre(::testing::AllOf(
                              ::testing::HasSubstr("a program that reads " + catalog_),
                              ::testing::HasSubstr("close that program"))));
  reader->reset();
  Commit(1);  // moves all pages, so that the next one starts the log again
  const uint64_t bytes = LogBytes();
  Commit(10);
  EXPECT_EQ(LogBytes(), bytes);
}

}  // namespace
}  // namespace spillway::io
