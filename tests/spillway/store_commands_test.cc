// SPDX-License-Identifier: Apache-2.0
//
// The commands for stores (inspect, fsck, snapshot, trim, remove), run on stores that training runs
// make.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/posix_io_engine.h"
#include "io/store/store.h"
#include "nlohmann/json.hpp"
#include "tests/read_only_mount.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns the names and bytes of the files in a folder, except the lock file, whose content is only
// for messages.
std::map<std::string, std::string> Content(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "spillway-lock") continue;
    files[entry.path()] = ReadFile(entry.path());
  }
  return files;
}

// A store after six steps, with commits at steps 4 and 6 and a snapshot of step 4.
class StoreCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    const Ended first = RunCommand(training_.TrainInStore(4));
    ASSERT_EQ(first.exit_code, 0) << first.err;
    hash_at_4_ = first.json()["weights_hash"];
    const Ended created = RunCommand({"snapshot", "create", store(), "step-4"});
    ASSERT_EQ(created.exit_code, 0) << created.err;
    const Ended second = RunCommand(training_.TrainInStore(6) + Arguments{"--resume"});
    ASSERT_EQ(second.exit_code, 0) << second.err;
    hash_at_6_ = second.json()["weights_hash"];
  }
  std::string store() const { return training_.store(); }
  Json Run(const Arguments& arguments) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json();
  }

  Training training_;
  std::string hash_at_4_;
  std::string hash_at_6_;
};

TEST_F(StoreCommands, InspectSaysWhatIsThereAndChangesNothing) {
  const auto before = Content(store());
  const Json json = Run({"inspect", store(), "--json"});
  EXPECT_EQ(Content(store()), before);
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["format"], 2);
  EXPECT_EQ(json["commit"]["step"], 6);
  EXPECT_TRUE(json["held_by"].is_null());
  EXPECT_EQ(json["snapshots"].size(), 1u);
  EXPECT_EQ(json["snapshots"][0]["label"], "step-4");
  EXPECT_EQ(json["snapshots"][0]["step"], 4);
  EXPECT_GT(json["snapshot_bytes"], 0);
  EXPECT_EQ(json["roles"]["parameter"]["tensors"], 20);
  EXPECT_EQ(json["roles"]["moment"]["tensors"], 40);
  EXPECT_EQ(json["tensors"].size(), 60u);
  EXPECT_EQ(json["tensors"][0]["description"]["dtype"], "f32");
  ASSERT_EQ(json["devices"].size(), 1u);
  const Json& device = json["devices"][0];
  EXPECT_EQ(device["used_bytes"].get<uint64_t>() + device["free_bytes"].get<uint64_t>(),
            device["file_bytes"].get<uint64_t>());
  EXPECT_EQ(device["used_bytes"], json["commit"]["used_bytes"]);

  const Ended text = RunCommand({"inspect", store(), "--tensors"});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"step 6", "snapshot step-4", "parameter", "model.norm.weight"}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
}

TEST_F(StoreCommands, InspectAndDoctorShowTheCalibration) {
  EXPECT_TRUE(Run({"inspect", store(), "--json"})["devices"][0]["calibration"].is_null());
  {
    const auto io = *io::PosixIoEngine::Create({});
    const auto opened = io::Store::Open({.folders = {store()}, .create = false}, io.get());
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE((*opened)->SetProfile(0, {2 << 20, 64, 128, 8, 3e9, double{1 << 30}}).ok());
  }
  const Json device = Run({"inspect", store(), "--json"})["devices"][0];
  EXPECT_EQ(device["calibration"]["write_depth"], 128);
  EXPECT_EQ(device["calibration"]["seconds_behind_writes"], 0.25);
  const std::string words =
      "read 3.00 GB/s, write 1.07 GB/s; requests of 2.0 MiB, depths 64 read, 128 write, 8 write "
      "beside reads; a read waits at most 250 ms for writes";
  EXPECT_THAT(RunCommand({"inspect", store()}).out, HasSubstr(words));
  EXPECT_THAT(RunCommand({"doctor", store()}).out, HasSubstr(words));
}

TEST_F(StoreCommands, InspectAndListWorkBesideARun) {
  Command run(training_.TrainInStore(100'000'000) + Arguments{"--resume", "--commit-every", "2"});
  while (!run.has_ended() && ReadLog(training_.log()).size() < 12) usleep(2000);
  const Json json = Run({"inspect", store(), "--json"});
  EXPECT_THAT(json["held_by"].get<std::string>(), HasSubstr("process "));
  EXPECT_GE(json["commit"]["step"], 6);
  EXPECT_EQ(Run({"snapshot", "list", store(), "--json"})["snapshots"][0]["label"], "step-4");
  // A command that would change the store, or read data that the run may free, is refused. The
  // message names the process that uses the store.
  for (const Arguments& arguments :
       {Arguments{"fsck", store()}, Arguments{"trim", store()},
        Arguments{"remove", store(), "--yes"}, Arguments{"snapshot", "create", store(), "x"},
        Arguments{"snapshot", "restore", store(), "step-4"},
        Arguments{"snapshot", "drop", store(), "step-4"},
        Arguments{"snapshot", "export", store(), "--save", training_ / "out"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 1) << arguments[0];
    EXPECT_THAT(ended.err, HasSubstr("in use by process ")) << arguments[0];
  }
  const Ended exported =
      RunCommand({"snapshot", "export", store(), "step-4", "--save", training_ / "while-running"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  run.Signal(SIGINT);
  EXPECT_EQ(run.Wait().exit_code, 130);
  EXPECT_EQ(RunCommand({"fsck", store()}).exit_code, 0);
}

TEST_F(StoreCommands, FsckFindsItWhole) {
  const auto before = Content(store());
  const Json json = Run({"fsck", store(), "--json"});
  EXPECT_EQ(Content(store()), before);
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["whole"], true);
  EXPECT_EQ(json["damage"], 0);
  EXPECT_EQ(json["orphan_bytes"], 0) << json["orphans"];
  EXPECT_EQ(json["tensors"], 60);
  EXPECT_GT(json["read_bytes"], 0);
  EXPECT_EQ(Run({"fsck", store(), "--json", "--catalog-only"})["read_bytes"], 0);
}

TEST_F(StoreCommands, AReadOnlyFileSystemIsEnoughToInspectAndCheck) {
  const ReadOnlyMount mount(store(), training_ / "seen");
  if (!mount.is_mounted()) GTEST_SKIP() << mount.why();
  const std::string seen = mount / "";
  EXPECT_EQ(Run({"fsck", seen, "--json"})["whole"], true);
  EXPECT_EQ(Run({"inspect", seen, "--json"})["snapshots"].size(), 1u);
  std::ofstream(store() + "/spillway-segment-000009") << std::string(4096, 'x');
  const Ended repaired = RunCommand({"fsck", seen, "--repair"});
  EXPECT_EQ(repaired.exit_code, 1);
  EXPECT_THAT(repaired.err, HasSubstr("EROFS"));
  EXPECT_TRUE(fs::exists(store() + "/spillway-segment-000009"));
}

TEST_F(StoreCommands, FsckNamesDamageAndEndsWith4) {
  const std::string segment = store() + "/spillway-segment-000000";
  std::string bytes = ReadFile(segment);
  // Damages one byte in every 4 KiB, at an offset inside the stored data.
  for (size_t at = 100; at < bytes.size(); at += 4096) bytes[at] = static_cast<char>(bytes[at] ^ 4);
  WriteFile(segment, bytes);
  const Ended ended = RunCommand({"fsck", store(), "--json", "--repair"});
  EXPECT_EQ(ended.exit_code, 4) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["whole"], false);
  EXPECT_GT(json["damage"], 10);
  EXPECT_EQ(json["repaired"], false);
  const Json& finding = json["findings"][0];
  for (const char* key : {"message", "tensor", "page", "file", "offset", "needed_by"}) {
    EXPECT_TRUE(finding.contains(key)) << key;
  }
  EXPECT_THAT(ended.err, HasSubstr("damaged"));
  const Ended text = RunCommand({"fsck", store()});
  EXPECT_EQ(text.exit_code, 4);
  EXPECT_THAT(text.out, HasSubstr("segment-000000: "));
}

TEST_F(StoreCommands, FsckRepairGivesBackOnlyWhatNothingNames) {
  std::ofstream(store() + "/spillway-segment-000009") << std::string(4096, 'x');
  std::ofstream(store() + "/mine.txt") << "text";
  const Ended looked = RunCommand({"fsck", store()});
  EXPECT_EQ(looked.exit_code, 0) << looked.err;
  EXPECT_THAT(looked.out, HasSubstr("--repair"));
  EXPECT_TRUE(fs::exists(store() + "/spillway-segment-000009")) << "only when asked";
  const Json json = Run({"fsck", store(), "--json", "--repair"});
  EXPECT_EQ(json["repaired"], true);
  EXPECT_FALSE(fs::exists(store() + "/spillway-segment-000009"));
  EXPECT_TRUE(fs::exists(store() + "/mine.txt"));
  EXPECT_EQ(Run({"fsck", store(), "--json"})["orphans"].size(), 0u);
}

TEST_F(StoreCommands, ALabelThatEqualsTheNameOfACommandIsALabel) {
  Run({"snapshot", "create", store(), "list", "--json"});
  EXPECT_EQ(Run({"snapshot", "list", store(), "--json"})["snapshots"].size(), 2u);
  const Ended restored = RunCommand({"snapshot", "restore", store(), "step-4", "drop"});
  EXPECT_EQ(restored.exit_code, 2);
  EXPECT_THAT(restored.err, HasSubstr("unknown argument drop"));
  EXPECT_EQ(Run({"snapshot", "list", store(), "--json"})["snapshots"].size(), 2u);
  Run({"snapshot", "drop", store(), "list", "--json"});
  EXPECT_EQ(Run({"snapshot", "list", store(), "--json"})["snapshots"].size(), 1u);
}

TEST_F(StoreCommands, ARestoreOfAnUnknownLabelKeepsNothing) {
  const Ended ended =
      RunCommand({"snapshot", "restore", store(), "step-5", "--keep", "step-6", "--json"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("step-5"));
  const Json list = Run({"snapshot", "list", store(), "--json"});
  EXPECT_EQ(list["snapshots"].size(), 1u) << list;
}

TEST_F(StoreCommands, AnExportDoesNotGoIntoTheStore) {
  const auto before = Content(store());
  for (const std::string& save :
       {store() + "/tuned", store() + "/../store/tuned/", training_ / ""}) {
    const Ended ended = RunCommand({"snapshot", "export", store(), "--save", save});
    EXPECT_EQ(ended.exit_code, 2) << save << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("lie in each other"));
  }
  EXPECT_EQ(Content(store()), before);
}

TEST_F(StoreCommands, RestoreGoesBackExactly) {
  const Json list = Run({"snapshot", "list", store(), "--json"});
  EXPECT_EQ(list["v"], 1);
  EXPECT_EQ(list["snapshots"].size(), 1u);
  const Json restored =
      Run({"snapshot", "restore", store(), "step-4", "--keep", "step-6", "--json"});
  EXPECT_EQ(restored["v"], 1);
  EXPECT_EQ(restored["snapshot"], list["snapshots"][0]);
  EXPECT_EQ(Run({"fsck", store(), "--json"})["whole"], true);
  const Ended at_4 = RunCommand(training_.TrainInStore(4) + Arguments{"--resume"});
  EXPECT_EQ(at_4.json()["weights_hash"], hash_at_4_) << at_4.err;
  const Ended at_6 = RunCommand(training_.TrainInStore(6) + Arguments{"--resume"});
  EXPECT_EQ(at_6.json()["weights_hash"], hash_at_6_) << "the same way again";
  ASSERT_EQ(RunCommand({"snapshot", "restore", store(), "step-6"}).exit_code, 0);
  const Ended kept = RunCommand(training_.TrainInStore(6) + Arguments{"--resume"});
  EXPECT_EQ(kept.json()["weights_hash"], hash_at_6_) << kept.err;
  EXPECT_EQ(kept.json()["steps_this_run"], 0);
}

TEST_F(StoreCommands, WhatWasDoneIsAnObjectForPrograms) {
  const Json created = Run({"snapshot", "create", store(), "now", "--json"});
  EXPECT_EQ(created["snapshot"]["label"], "now");
  EXPECT_EQ(created["snapshot"]["step"], 6);
  const std::string folder = training_ / "out";
  EXPECT_EQ(Run({"snapshot", "export", store(), "now", "--save", folder, "--json"})["saved"],
            folder);
  const Json dropped = Run({"snapshot", "drop", store(), "step-4", "--json"});
  EXPECT_EQ(dropped["dropped"], "step-4");
  EXPECT_GT(dropped["freed_bytes"], 0);
}

TEST_F(StoreCommands, DropAndTrimGiveTheSpaceBack) {
  const uint64_t used = Run({"inspect", store(), "--json"})["commit"]["used_bytes"];
  const Ended dropped = RunCommand({"snapshot", "drop", store(), "step-4"});
  ASSERT_EQ(dropped.exit_code, 0) << dropped.err;
  EXPECT_THAT(dropped.err, HasSubstr("free again"));
  const Json after = Run({"inspect", store(), "--json"});
  EXPECT_LT(after["commit"]["used_bytes"].get<uint64_t>(), used);
  EXPECT_EQ(after["snapshots"].size(), 0u);
  EXPECT_GT(Run({"trim", store(), "--json"})["bytes"], 0);
  EXPECT_EQ(Run({"trim", store(), "--json"})["bytes"], 0) << "once is enough";
  EXPECT_EQ(Run({"fsck", store(), "--json"})["whole"], true);
  const Ended resumed = RunCommand(training_.TrainInStore(6) + Arguments{"--resume"});
  EXPECT_EQ(resumed.json()["weights_hash"], hash_at_6_) << resumed.err;
}

TEST_F(StoreCommands, ExportIsWhatTrainSaves) {
  WriteFile(training_.model() + "/tokenizer.json", R"({"model": {"vocab": {"a": 0}}})");
  const Ended saved =
      RunCommand(training_.TrainInStore(6) + Arguments{"--resume", "--save", training_ / "saved"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const auto before = Content(store());
  const Ended exported = RunCommand({"snapshot", "export", store(), "--save",
                                     training_ / "exported", "--model", training_.model()});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(Content(store()), before);
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_EQ(ReadFile(training_ / ("exported/" + std::string(file))),
              ReadFile(training_ / ("saved/" + std::string(file))))
        << file;
  }
  const Ended older =
      RunCommand({"snapshot", "export", store(), "step-4", "--save", training_ / "older"});
  ASSERT_EQ(older.exit_code, 0) << older.err;
  EXPECT_NE(ReadFile(training_ / "older/model.safetensors"),
            ReadFile(training_ / "saved/model.safetensors"));
  EXPECT_FALSE(fs::exists(training_ / "older/tokenizer.json"));
  // The export of the snapshot equals the model that a run restored to step 4 saves.
  const Ended at_4 = RunCommand({"snapshot", "restore", store(), "step-4"});
  ASSERT_EQ(at_4.exit_code, 0) << at_4.err;
  const Ended again = RunCommand(training_.TrainInStore(4) +
                                 Arguments{"--resume", "--save", training_ / "saved-4"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(ReadFile(training_ / "older/model.safetensors"),
            ReadFile(training_ / "saved-4/model.safetensors"));
  EXPECT_EQ(RunCommand({"snapshot", "export", store(), "--save", training_ / "older"}).exit_code, 1)
      << "nothing is overwritten";
}

// Renames the tensors of a safetensors file: takes `prefix` from the names that begin with it.
void TakePrefixOut(const std::string& file, const std::string& prefix) {
  const std::string bytes = ReadFile(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const std::string data = bytes.substr(sizeof(length) + length);
  const auto named = nlohmann::ordered_json::parse(bytes.substr(sizeof(length), length));
  nlohmann::ordered_json renamed;
  for (const auto& [name, tensor] : named.items())
    renamed[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = tensor;
  const std::string header = renamed.dump();
  length = header.size();
  WriteFile(file,
            std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data);
}

// GPT-2's files have names with and without a prefix; a store and its exports keep which it was.
TEST(SnapshotExport, KeepsNamesWithoutAPrefix) {
  Training training;
  WriteTinyModel(training.model(), TinyConfigOf("gpt2"));
  const std::string bare = training / "bare";
  ASSERT_EQ(RunCommand(training.Train(1) + Arguments{"--save", bare}).exit_code, 0);
  TakePrefixOut(bare + "/model.safetensors", "transformer.");
  const Ended trained =
      RunCommand({"train", "--model", bare, "--data", training.data(), "--seq", "16", "--steps",
                  "2", "--store", training.store(), "--save", training / "saved"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const std::string weights = ReadFile(training / "exported/model.safetensors");
  EXPECT_EQ(weights, ReadFile(training / "saved/model.safetensors"));
  EXPECT_THAT(weights, HasSubstr("\"wte.weight\""));
  EXPECT_THAT(weights, Not(HasSubstr("transformer.")));
}

TEST_F(StoreCommands, RemoveTakesWhatIsSpillwaysAlone) {
  std::ofstream(store() + "/mine.txt") << "text";
  std::ofstream(store() + "/spillway-segment-1.bak") << "text";
  const auto before = Content(store());
  const Ended asked = RunCommand({"remove", store()});
  EXPECT_EQ(asked.exit_code, 2);
  EXPECT_THAT(asked.out, HasSubstr("spillway-catalog.sqlite\n"));
  EXPECT_THAT(asked.out, HasSubstr("spillway-lock\n"));
  const Json listed = RunCommand({"remove", store(), "--json"}).json();
  EXPECT_EQ(listed["v"], 1);
  EXPECT_EQ(listed["removed"], false);
  EXPECT_EQ(listed["files"].size(), before.size() - 1) << "two are mine, and the lock";
  EXPECT_THAT(asked.err, HasSubstr("nothing was removed"));
  EXPECT_EQ(Content(store()), before);
  const Json removed = Run({"remove", store(), "--yes", "--json"});
  EXPECT_EQ(removed["removed"], true);
  EXPECT_EQ(removed["files"], listed["files"]);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(store())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("mine.txt", "spillway-segment-1.bak"));
  EXPECT_EQ(RunCommand({"remove", store(), "--yes"}).exit_code, 1) << "there is none any more";
}

TEST_F(StoreCommands, ADamagedStoreCanBeRemoved) {
  WriteFile(store() + "/spillway-store", "Spillway store\nversion 1\ngarbage\n");
  std::ofstream(store() + "/spillway-catalog.sqlite") << "garbage";
  EXPECT_EQ(RunCommand({"remove", store(), "--yes"}).exit_code, 0);
  EXPECT_TRUE(fs::is_empty(store()));
}

TEST_F(StoreCommands, WrongUsageIsExplained) {
  const auto expect = [&](const Arguments& arguments, int code, const std::string& part) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, code) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(part));
  };
  expect({"inspect"}, 2, "a store is needed");
  expect({"inspect", training_ / "none"}, 1, "none");
  expect({"fsck", store(), "--reapir"}, 2, "did you mean --repair?");
  expect({"snapshot"}, 2, "a command is needed");
  expect({"snapshot", "lits", store()}, 2, "did you mean list?");
  expect({"snapshot", "create", store()}, 2, "label");
  expect({"snapshot", "create", store(), "a b"}, 2, "letters, digits");
  expect({"snapshot", "create", store(), "step-4"}, 1, "already");
  expect({"snapshot", "restore", store(), "step-9"}, 1, "step-9");
  expect({"snapshot", "export", store(), "step-9", "--save", training_ / "o"}, 1, "step-9");
  expect({"snapshot", "export", store()}, 2, "--save");
  expect({"remove", training_.model(), "--yes"}, 1, "there is no store");
}

TEST(StoreCommandsOnTwoFolders, TheyAreNamedTogether) {
  const Training training;
  const std::string both = training / "a" + "," + training / "b";
  const Ended trained = RunCommand(training.Train(2) + Arguments{"--store", both});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Ended inspected = RunCommand({"inspect", both, "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_EQ(inspected.json()["devices"].size(), 2u);
  EXPECT_EQ(RunCommand({"fsck", both}).exit_code, 0);
  EXPECT_NE(RunCommand({"inspect", training / "a"}).exit_code, 0);
  fs::rename(training / "b", training / "unmounted");
  const Ended lost = RunCommand({"inspect", both, "--json"});
  EXPECT_EQ(lost.exit_code, 0) << lost.err;
  EXPECT_THAT(lost.err, HasSubstr(training / "b" + " is not there"));
  EXPECT_EQ(RunCommand({"fsck", both}).exit_code, 4);
  EXPECT_EQ(RunCommand({"trim", both}).exit_code, 1);
  EXPECT_FALSE(fs::exists(training / "b"));
  fs::rename(training / "unmounted", training / "b");
  const Ended half = RunCommand({"remove", training / "b", "--yes"});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr("2 folders"));
  EXPECT_EQ(RunCommand({"remove", both, "--yes"}).exit_code, 0);
  EXPECT_TRUE(fs::is_empty(training / "a") && fs::is_empty(training / "b"));
}

// Folders "a" and "b" of one store, made without a run.
class TwoFolderCommands : public ::testing::Test {
 protected:
  void SetUp() override { Make({folder_ / "a", folder_ / "b"}); }
  // Makes a store with a segment file in each folder, and a commit.
  void Make(const std::vector<std::string>& folders) {
    const auto io = *io::PosixIoEngine::Create({});
    const auto opened = io::Store::Open({.folders = folders}, io.get());
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (size_t i = 0; i < folders.size(); ++i) ASSERT_TRUE((*opened)->Allocate(4096).ok());
    ASSERT_TRUE((*opened)->Commit("{}").ok());
  }
  std::string both() const { return folder_ / "a" + "," + folder_ / "b"; }
  Ended Remove() { return RunCommand({"remove", both(), "--yes"}); }

  TempFolder folder_;
};

TEST_F(TwoFolderCommands, AnInterruptedRemovalCanBeCompleted) {
  for (const auto& entry : fs::directory_iterator(folder_ / "a")) fs::remove(entry.path());
  const Ended asked = RunCommand({"remove", both()});
  EXPECT_EQ(asked.exit_code, 2);
  EXPECT_THAT(asked.err, HasSubstr("note: " + folder_ / "a" + " has nothing of the store"));
  const Ended removed = Remove();
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_TRUE(fs::is_empty(folder_ / "b"));
  const Ended again = Remove();
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("there is no store in " + both()));
}

TEST_F(TwoFolderCommands, TheRestOfAStoreWithALostFolderCanBeRemoved) {
  for (const char* const lost : {"a", "b"}) {
    fs::remove_all(folder_ / lost);
    const auto rest = Content(folder_.path());
    const Ended refused = Remove();
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, HasSubstr("make an empty one there"));
    EXPECT_EQ(Content(folder_.path()), rest);
    fs::create_directory(folder_ / lost);
    const Ended removed = Remove();
    EXPECT_EQ(removed.exit_code, 0) << removed.err;
    EXPECT_TRUE(fs::is_empty(folder_ / "a") && fs::is_empty(folder_ / "b"));
    Make({folder_ / "a", folder_ / "b"});
  }
}

TEST_F(TwoFolderCommands, AFolderOfAnotherStoreIsNotRemovedWithTheRest) {
  Make({folder_ / "c", folder_ / "d"});
  const auto before = Content(folder_ / "d");
  const Ended two = RunCommand({"remove", folder_ / "a" + "," + folder_ / "d", "--yes"});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("different stores"));
  fs::remove(folder_ / "d/spillway-store");
  const Ended nameless = RunCommand({"remove", folder_ / "a" + "," + folder_ / "d", "--yes"});
  EXPECT_EQ(nameless.exit_code, 1);
  EXPECT_THAT(nameless.err, HasSubstr("no identity"));
  EXPECT_EQ(Content(folder_ / "d").size() + 1, before.size());
  EXPECT_EQ(RunCommand({"fsck", both()}).exit_code, 0);
}

// Files grow before the first commit, and after the last one.
TEST_F(TwoFolderCommands, InspectShowsWhatTheFilesTakeOfTheDisk) {
  const auto io = *io::PosixIoEngine::Create({});
  const auto opened = io::Store::Open({.folders = {folder_ / "new"}}, io.get());
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE((*opened)->Allocate(4096).ok());
  struct stat info{};
  ASSERT_EQ(stat((folder_ / "new/spillway-segment-000000").c_str(), &info), 0);
  const Ended ended = RunCommand({"inspect", folder_ / "new", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json device = ended.json()["devices"][0];
  EXPECT_EQ(device["segments"], 0);
  EXPECT_EQ(device["file_bytes"], 0);
  EXPECT_GT(device["disk_bytes"], 0);
  EXPECT_EQ(device["disk_bytes"], info.st_blocks * 512);
  EXPECT_THAT(RunCommand({"inspect", folder_ / "new"}).out, HasSubstr("on disk"));
}

}  // namespace
}  // namespace spillway::test
