// SPDX-License-Identifier: Apache-2.0
//
// Tests the training loop over an engine on the heap: when it commits, evaluates, skips and stops,
// which windows it takes, and that accumulation changes only the order of additions.

#include "tools/trainer/trainer.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/heap_engine.h"
#include "tests/temp_folder.h"
#include "tests/trainer/small_model.h"
#include "tools/trainer/fixed_flags.h"
#include "tools/trainer/master_weights.h"

namespace spillway::trainer {
namespace {

using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// An engine that records the committed states. Leases of a tensor can be made to fail.
class CommittingEngine : public HeapEngine {
 public:
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) override {
    if (absl::Status status = Read(tile); !status.ok()) return status;
    return HeapEngine::Acquire(tile, access, stream);
  }
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    if (absl::Status status = Read(tile); !status.ok()) return status;
    return HeapEngine::AcquireHost(tile, access);
  }
  absl::Status EndStep() override {
    ++steps_ended_;
    return absl::OkStatus();
  }
  absl::Status Commit(std::string_view user_state) override {
    if (commits_that_fail-- > 0) return absl::UnavailableError("no room");
    commits.push_back(*ParseTrainState(user_state));
    return absl::OkStatus();
  }

  std::vector<int64_t> committed_steps() const {
    std::vector<int64_t> steps;
    for (const TrainState& state : commits) steps.push_back(state.step);
    return steps;
  }

  EngineStats Stats() const override {
    EngineStats stats = HeapEngine::Stats();
    stats.nvme.written_bytes = stats.role_nvme[static_cast<size_t>(Role::kMoment)].written_bytes =
        written_bytes;
    return stats;
  }

  std::vector<TrainState> commits;
  uint64_t written_bytes = 0;
  TensorId bad;            // the next `failures` leases of this tensor after `good_steps` fail
  int64_t good_steps = 0;  // evaluations count as steps
  int64_t failures = 0;
  absl::Status bad_read;
  int commits_that_fail = 0;

 private:
  absl::Status Read(TileRef tile) {
    if (tile.tensor != bad || steps_ended_ < good_steps || failures == 0) return absl::OkStatus();
    --failures;
    return bad_read;
  }

  int64_t steps_ended_ = 0;
};

constexpr int64_t kAlways = int64_t{1} << 40;

TrainerOptions SmallOptions(int64_t steps) {
  TrainerOptions options;
  options.model.sequence = 8;
  options.schedule = {.learning_rate = 1e-2, .total_steps = steps};
  options.loss_scaler.enabled = false;
  options.durable = true;
  return options;
}

// A trainer with its data, its engine and its thread pool.
class TrainingRun {
 public:
  explicit TrainingRun(const TrainerOptions& options,
                       const std::optional<TrainState>& state = std::nullopt) {
    std::vector<uint16_t> tokens;
    std::mt19937_64 random(5);
    for (int i = 0; i < 400; ++i) tokens.push_back(static_cast<uint16_t>(random() % 53));
    test::WriteNpy(folder_ / "train.npy", tokens);
    test::WriteNpy(folder_ / "valid.npy", tokens);
    train_data_ = *TokenData::Open(folder_.path(), "train", 53, options.model.sequence);
    valid_data_ = *TokenData::Open(folder_.path(), "valid", 53, options.model.sequence);
    // A resumed run finds the tensors of the run before it.
    if (state) trainer = Create(options, std::nullopt);
    trainer = Create(options, state);
  }

  absl::StatusOr<RunSummary> Go() {
    const auto observe = [this](const StepRecord& record) {
      records.push_back(record);
      engine.written_bytes += written_after_record;
      if (static_cast<int64_t>(records.size()) == stop_at) stop = true;
      return observer_status;
    };
    return trainer->Run(observe, stop);
  }

  // Goes on as another run that finds this one's tensors.
  void Resume(const TrainerOptions& options, const TrainState& state) {
    trainer = Create(options, state);
  }

  std::vector<float> Weights() {
    std::vector<float> all;
    for (const Parameter& parameter : trainer->model().parameters()) {
      const auto values = engine.Values<float>(parameter.tensors.master);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  std::unique_ptr<Trainer> Create(const TrainerOptions& options,
                                  const std::optional<TrainState>& state) {
    auto created = Trainer::Create(&engine, &pool_, SmallConfig(), options, train_data_.get(),
                                   valid_data_.get(), TestWeights(), state);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? *std::move(created) : nullptr;
  }

  TempFolder folder_;
  ThreadPool pool_{2};
  std::unique_ptr<TokenData> train_data_;
  std::unique_ptr<TokenData> valid_data_;

 public:
  CommittingEngine engine;
  std::unique_ptr<Trainer> trainer;
  std::vector<StepRecord> records;
  std::atomic<bool> stop{false};
  int64_t stop_at = -1;  // the number of records after which `stop` is set
  absl::Status observer_status;
  uint64_t written_after_record = 0;  // bytes, of a write that the step began
};

TEST(Trainer, CommitsOnceAtTheEndUnlessAskedOtherwise) {
  TrainingRun run(SmallOptions(5));
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->reason, EndReason::kDone);
  EXPECT_EQ(summary->step, 5);
  EXPECT_THAT(run.engine.committed_steps(), ElementsAre(5));
}

TEST(Trainer, AResumedRunKeepsTheTilesOfItsStore) {
  TrainerOptions options = SmallOptions(4);
  options.model.precision = Precision::kBf16;
  options.model.gradient_dtype = DType::kBF16;
  options.model.state_format = StateFormat::kCompact;
  options.model.tiles = {.values = 250, .state = 60};
  TrainingRun uncut(options);
  ASSERT_TRUE(uncut.Go().ok());

  options.stop_after = 2;
  TrainingRun run(options);
  ASSERT_TRUE(run.Go().ok());
  const TrainState state = run.engine.commits.back();
  EXPECT_EQ(state.tiles, options.model.tiles);
  const size_t num_tensors = run.engine.specs().size();
  options.stop_after = 0;
  options.model.tiles = {};
  run.Resume(options, state);
  ASSERT_NE(run.trainer, nullptr);
  EXPECT_EQ(run.engine.specs().size(), num_tensors) << "tensors of other tiles are other tensors";
  ASSERT_TRUE(run.Go().ok());
  EXPECT_EQ(run.engine.commits.back().step, 4);
  EXPECT_EQ(run.engine.commits.back().tiles, state.tiles);
  EXPECT_EQ(*HashWeights(&run.engine, run.trainer->model().parameters()),
            *HashWeights(&uncut.engine, uncut.trainer->model().parameters()));
}

TEST(Trainer, CommitsEveryFewStepsAndNeverTwiceTheSame) {
  TrainerOptions options = SmallOptions(6);
  options.commit_every = 2;
  TrainingRun even(options);
  ASSERT_TRUE(even.Go().ok());
  EXPECT_THAT(even.engine.committed_steps(), ElementsAre(2, 4, 6));
  options.schedule.total_steps = 5;
  TrainingRun odd(options);
  ASSERT_TRUE(odd.Go().ok());
  EXPECT_THAT(odd.engine.committed_steps(), ElementsAre(2, 4, 5));
}

TEST(Trainer, CommitsAreTimedInTheNextRecordAndTheSummary) {
  TrainerOptions options = SmallOptions(5);
  options.commit_every = 2;
  TrainingRun run(options);
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  std::vector<bool> timed;
  for (const StepRecord& record : run.records) timed.push_back(record.commit_seconds > 0);
  EXPECT_THAT(timed, ElementsAre(false, false, true, false, true));
  EXPECT_EQ(summary->commits, 3);
  EXPECT_GT(summary->commit_seconds, run.records[2].commit_seconds + run.records[4].commit_seconds);
}

TEST(Trainer, AskedToStopItFinishesTheStepAndCommits) {
  TrainingRun run(SmallOptions(1000));
  run.stop_at = 3;
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->reason, EndReason::kInterrupted);
  EXPECT_EQ(summary->step, 3);
  EXPECT_THAT(run.engine.committed_steps(), ElementsAre(3));
}

TEST(Trainer, AskedToStopWhenAllStepsAreDoneItIsDone) {
  TrainingRun last(SmallOptions(3));
  last.stop_at = 3;
  auto summary = last.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->reason, EndReason::kDone);

  TrainerOptions options = SmallOptions(1000);
  options.stop_after = 3;
  TrainingRun stopped(options);
  stopped.stop_at = 3;
  summary = stopped.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->reason, EndReason::kStoppedAfter);
}

TEST(Trainer, StopsAfterAsManyStepsOfThisRun) {
  TrainerOptions options = SmallOptions(1000);
  options.stop_after = 4;
  TrainState state;
  state.step = 10;
  state.applied_updates = 10;
  TrainingRun run(options, state);
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->reason, EndReason::kStoppedAfter);
  EXPECT_EQ(summary->step, 14);
  EXPECT_EQ(summary->steps_this_run, 4);
  EXPECT_EQ(run.engine.commits.back().applied_updates, 14);
}

TEST(Trainer, WithoutAStoreNothingIsCommitted) {
  TrainerOptions options = SmallOptions(3);
  options.durable = false;
  TrainingRun run(options);
  ASSERT_TRUE(run.Go().ok());
  EXPECT_TRUE(run.engine.commits.empty());
}

TEST(Trainer, AFailingObserverEndsTheRunAfterACommitOfWhatIsDone) {
  TrainingRun run(SmallOptions(3));
  run.observer_status = absl::UnavailableError("the disk is full");
  const absl::Status status = run.Go().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(
      std::string(status.message()),
      "the disk is full; the 1 steps before are committed, and --resume continues from there");
  EXPECT_EQ(run.records.size(), 1U);
  ASSERT_EQ(run.engine.commits.size(), 1U);
  EXPECT_EQ(run.engine.commits.back().step, 1);
}

// Returns a run that commits every `commit_every` steps. From the fourth step on, leases of a
// weight fail.
std::unique_ptr<TrainingRun> RunWithABadPage(const absl::Status& status, TrainerOptions options,
                                             int64_t commit_every = 2) {
  options.commit_every = commit_every;
  auto run = std::make_unique<TrainingRun>(options);
  run->engine.bad = run->trainer->model().parameters()[0].tensors.weight;
  run->engine.good_steps = 3;
  run->engine.failures = kAlways;
  run->engine.bad_read = status;
  return run;
}

TEST(Trainer, StateThatCannotBeReadReplacesNoCommit) {
  for (const absl::Status& bad : {absl::DataLossError("bad"), absl::UnavailableError("bad")}) {
    const auto run = RunWithABadPage(bad, SmallOptions(10));
    const absl::Status status = run->Go().status();
    EXPECT_EQ(status.code(), bad.code());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the commit of step 2"), HasSubstr("That commit stands"),
                      HasSubstr("--resume")));
    EXPECT_EQ(run->records.size(), 3U);
    EXPECT_THAT(run->engine.committed_steps(), ElementsAre(2));
  }
}

TEST(Trainer, StateThatCannotBeReadIsNotTheFirstCommitEither) {
  for (const absl::Status& bad : {absl::DataLossError("bad"), absl::UnavailableError("bad")}) {
    const auto run = RunWithABadPage(bad, SmallOptions(10), /*commit_every=*/0);
    const absl::Status status = run->Go().status();
    EXPECT_EQ(status.code(), bad.code());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("nothing is committed"), HasSubstr("--commit-every"),
                      Not(HasSubstr("--resume")), Not(HasSubstr("-1"))));
    EXPECT_EQ(run->records.size(), 3U);
    EXPECT_THAT(run->engine.committed_steps(), IsEmpty());
  }
}

// The step's own lease fails, then the first lease of the check.
TEST(Trainer, AfterAReadThatFailsForAMomentTheFirstCommitIsMade) {
  const auto run =
      RunWithABadPage(absl::UnavailableError("bad"), SmallOptions(10), /*commit_every=*/0);
  run->engine.failures = 2;
  EXPECT_THAT(std::string(run->Go().status().message()),
              HasSubstr("the 3 steps before are committed"));
  EXPECT_THAT(run->engine.committed_steps(), ElementsAre(3));
}

// Only updates lease the moments.
TEST(Trainer, AnErrorInAnUpdateSaysWhetherACommitStands) {
  for (const int64_t every : {0, 2}) {
    const auto run = RunWithABadPage(absl::ResourceExhaustedError("full"), SmallOptions(10), every);
    run->engine.bad = run->trainer->model().parameters()[0].tensors.state.back();
    const std::string message(run->Go().status().message());
    EXPECT_THAT(message, HasSubstr("the update of step 4 was under way"));
    if (every == 0) {
      EXPECT_THAT(message, AllOf(HasSubstr("nothing had been committed"),
                                 HasSubstr("--commit-every"), Not(HasSubstr("stands"))));
      EXPECT_THAT(run->engine.committed_steps(), IsEmpty());
    } else {
      EXPECT_THAT(message, HasSubstr("so the last commit stands"));
      EXPECT_THAT(run->engine.committed_steps(), ElementsAre(2));
    }
  }
}

// The evaluation after the fourth step is the first to read the page.
TEST(Trainer, StateThatAnEvaluationCouldNotReadReplacesNoCommit) {
  for (const absl::Status& bad : {absl::DataLossError("bad"), absl::UnavailableError("bad")}) {
    TrainerOptions options = SmallOptions(10);
    options.evaluate_every = 4;
    const auto run = RunWithABadPage(bad, options);
    run->engine.good_steps = 4;
    const absl::Status status = run->Go().status();
    EXPECT_EQ(status.code(), bad.code());
    EXPECT_THAT(std::string(status.message()), HasSubstr("the commit of step 2"));
    ASSERT_EQ(run->records.size(), 4U);
    EXPECT_EQ(run->records.back().evaluation_error, "bad");
    EXPECT_THAT(run->engine.committed_steps(), ElementsAre(2));
  }
}

// The step's own lease fails, then the first lease of the check.
TEST(Trainer, AReadThatFailsForAMomentLosesNoStep) {
  const auto run = RunWithABadPage(absl::UnavailableError("bad"), SmallOptions(10));
  run->engine.failures = 2;
  const absl::Status status = run->Go().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the 3 steps before are committed"));
  EXPECT_THAT(run->engine.committed_steps(), ElementsAre(2, 3));
}

TEST(Trainer, AfterAnEvaluationOfBadDataTheCommitsGoOn) {
  TrainerOptions options = SmallOptions(6);
  options.evaluate_every = 4;
  const auto run = RunWithABadPage(absl::DataLossError("bad"), options);
  run->engine.good_steps = 4;
  run->engine.failures = 1;
  const auto summary = run->Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(run->records[3].evaluation_error, "bad");
  EXPECT_THAT(run->engine.committed_steps(), ElementsAre(2, 4, 6));
}

TEST(Trainer, OfARunWhoseLastCommitFailsTheSummaryHasTheError) {
  for (const auto& [every, stop_after] : {std::pair(0, 0), {3, 0}, {2, 2}}) {
    for (const int failures : {1, 2}) {
      TrainerOptions options = SmallOptions(3);
      options.commit_every = every;
      options.stop_after = stop_after;
      TrainingRun run(options);
      run.engine.commits_that_fail = failures;
      const auto summary = run.Go();
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_TRUE(absl::IsUnavailable(summary->commit)) << summary->commit;
      EXPECT_EQ(run.trainer->is_committed(), failures == 1) << "it is tried twice";
    }
  }
}

TEST(Trainer, ARunWhoseCommitFailsBetweenStepsEnds) {
  TrainerOptions options = SmallOptions(3);
  options.commit_every = 2;
  TrainingRun run(options);
  run.engine.commits_that_fail = 2;
  EXPECT_TRUE(absl::IsUnavailable(run.Go().status()));
  EXPECT_EQ(run.records.size(), 2U);
}

TEST(Trainer, MemoryThatRunsOutIsAnErrorThatNamesWhatTakesIt) {
  TrainingRun run(SmallOptions(3));
  const auto throws = [](const StepRecord&) -> absl::Status { throw std::bad_alloc(); };
  const absl::Status status = run.trainer->Run(throws, run.stop).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const char* flag : {"--seq", "--batch", "--accumulate"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
  }
}

TEST(Trainer, AWriteThatEndsAfterItsStepsRecordCountsInTheNext) {
  TrainerOptions options = SmallOptions(5);
  options.commit_every = 3;
  TrainingRun run(options);
  run.written_after_record = 100;
  ASSERT_TRUE(run.Go().ok());
  std::vector<uint64_t> written, of_state;
  for (const StepRecord& record : run.records) {
    written.push_back(record.nvme.written_bytes);
    of_state.push_back(record.state.written_bytes);
  }
  EXPECT_THAT(written, ElementsAre(0, 100, 100, 0, 100));  // the fourth step follows a commit
  EXPECT_EQ(of_state, written);
}

TEST(Trainer, EvaluatesWhenItIsTime) {
  TrainerOptions options = SmallOptions(5);
  options.evaluate_every = 2;
  options.evaluate_windows = 1000;
  TrainingRun run(options);
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  std::vector<bool> evaluated;
  for (const StepRecord& record : run.records) evaluated.push_back(record.evaluation.has_value());
  EXPECT_THAT(evaluated, ElementsAre(false, true, false, true, false));
  EXPECT_EQ(run.records[1].evaluation->windows, (400 - 1) / 8) << "all that there are";
  EXPECT_EQ(summary->last_evaluation->loss, run.records[3].evaluation->loss);
}

TEST(Trainer, EachFailedEvaluationIsInItsRecordAndTheFirstSaysWhy) {
  TrainerOptions options = SmallOptions(4);
  options.evaluate_every = 1;
  options.durable = false;
  options.schedule.learning_rate = 0;
  const auto run = RunWithABadPage(absl::UnavailableError("bad"), options);
  run->engine.good_steps = 1;  // the step; its evaluation fails, and so does the next
  run->engine.failures = 1;
  const auto again = [&](const StepRecord& record) {
    run->records.push_back(record);
    // A step and its evaluation end two engine steps; the next evaluation is the third.
    run->engine.good_steps = record.step == 1 ? 3 : kAlways;
    run->engine.failures = 1;
    return absl::OkStatus();
  };
  ASSERT_TRUE(run->trainer->Run(again, run->stop).ok());
  std::vector<bool> failed;
  std::vector<std::string> errors;
  for (const StepRecord& record : run->records) {
    failed.push_back(record.evaluation_failed);
    errors.push_back(record.evaluation_error);
  }
  EXPECT_THAT(failed, ElementsAre(true, true, false, false));
  EXPECT_THAT(errors, ElementsAre("bad", "", "", ""));
}

TEST(Trainer, AnEvaluationWhoseLossIsNotFiniteHasFailed) {
  TrainerOptions options = SmallOptions(1);
  options.evaluate_every = 1;
  options.schedule.learning_rate = 1e15;  // products of such weights overflow fp32
  TrainingRun run(options);
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(run.records[0].evaluation.has_value());
  EXPECT_THAT(run.records[0].evaluation_error, HasSubstr("the loss of window 0 is not finite"));
  EXPECT_FALSE(summary->last_evaluation.has_value());
}

TEST(Trainer, StateCountsWindowsAndUpdates) {
  TrainerOptions options = SmallOptions(3);
  options.model.accumulate = 2;
  options.model.micro_batch = 4;
  TrainingRun run(options);
  ASSERT_TRUE(run.Go().ok());
  const TrainState& state = run.engine.commits.back();
  EXPECT_EQ(state.data_position, 3U * 2 * 4);
  EXPECT_EQ(state.applied_updates, 3);
  EXPECT_EQ(state.last_loss, run.records.back().loss);
}

TEST(Trainer, SixteenMicroBatchesOfFourGiveWhatOneBatchOf64GivesToRounding) {
  TrainerOptions options = SmallOptions(3);
  options.model.micro_batch = 64;
  TrainingRun whole(options);
  ASSERT_TRUE(whole.Go().ok());
  options.model.micro_batch = 4;
  options.model.accumulate = 16;
  TrainingRun parts(options);
  ASSERT_TRUE(parts.Go().ok());
  for (size_t i = 0; i < whole.records.size(); ++i) {
    EXPECT_NEAR(parts.records[i].loss, whole.records[i].loss, 1e-5);
    EXPECT_NEAR(parts.records[i].grad_norm, whole.records[i].grad_norm,
                1e-4 * whole.records[i].grad_norm);
  }
}

TEST(Trainer, TheReportedNormIsThatBeforeClipping) {
  TrainerOptions options = SmallOptions(1);
  TrainingRun unclipped(options);
  options.clip_norm = 1e-3;
  TrainingRun clipped(options);
  ASSERT_TRUE(unclipped.Go().ok());
  ASSERT_TRUE(clipped.Go().ok());
  EXPECT_GT(unclipped.records[0].grad_norm, 1e-2);
  EXPECT_EQ(clipped.records[0].grad_norm, unclipped.records[0].grad_norm);
}

TEST(Trainer, ClippingChangesTheWeights) {
  TrainerOptions options = SmallOptions(2);
  options.clip_norm = 0;
  TrainingRun unclipped(options);
  options.clip_norm = 1e9;
  TrainingRun loose(options);
  options.clip_norm = 1e-9;
  TrainingRun tight(options);
  for (TrainingRun* run : {&unclipped, &loose, &tight}) ASSERT_TRUE(run->Go().ok());
  EXPECT_EQ(unclipped.Weights(), loose.Weights());
  EXPECT_NE(unclipped.Weights(), tight.Weights());
}

TEST(Trainer, TheLearningRateFollowsTheSchedule) {
  TrainerOptions options = SmallOptions(4);
  options.schedule.kind = ScheduleKind::kCosine;
  options.schedule.warmup_steps = 2;
  TrainingRun run(options);
  ASSERT_TRUE(run.Go().ok());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(run.records[i].learning_rate, options.schedule.At(static_cast<int64_t>(i)));
  }
}

TrainerOptions AmpOptions(int64_t steps, double scale) {
  TrainerOptions options = SmallOptions(steps);
  options.model.precision = Precision::kFp16Amp;
  options.model.gradient_dtype = DType::kF16;
  options.loss_scaler = {.initial_scale = scale};
  return options;
}

// Without a loss scale, a gradient that is not finite ends the run and does not change the
// weights.
TEST(Trainer, UnderBf16AGradientThatIsNotFiniteIsAnError) {
  TrainerOptions options = SmallOptions(2000);
  options.model.precision = Precision::kBf16;
  options.model.gradient_dtype = DType::kBF16;
  options.schedule.learning_rate = 10;
  options.weight_decay = 100;  // each step multiplies the weights by -999
  options.clip_norm = 0;
  TrainingRun run(options);
  const absl::Status status = run.Go().status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not finite"));
  for (const StepRecord& record : run.records) {
    EXPECT_FALSE(record.skipped);
    EXPECT_EQ(record.loss_scale, 1);
  }
  for (const float weight : run.Weights()) ASSERT_TRUE(std::isfinite(weight));

  // The state that ends so replaces no commit.
  ASSERT_GE(run.records.size(), 2U);
  const auto good = static_cast<int>(run.records.size()) - 1;
  options.commit_every = good;
  TrainingRun again(options);
  EXPECT_THAT(std::string(again.Go().status().message()),
              HasSubstr(absl::StrCat("the commit of step ", good, " stands")));
  EXPECT_EQ(again.engine.commits.size(), 1U);
}

TEST(Trainer, AnOverflowSkipsTheUpdateButTakesTheWindow) {
  TrainingRun run(AmpOptions(1, 0x1.0p60));
  const std::vector<float> before = run.Weights();
  const auto summary = run.Go();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(run.records[0].skipped);
  EXPECT_TRUE(std::isinf(run.records[0].grad_norm));
  EXPECT_EQ(run.records[0].loss_scale, 0x1.0p60);
  EXPECT_EQ(run.Weights(), before);
  const TrainState& state = run.engine.commits.back();
  EXPECT_EQ(state.step, 1);
  EXPECT_EQ(state.applied_updates, 0);
  EXPECT_EQ(state.data_position, 1U);
  EXPECT_EQ(state.loss_scale.scale, 0x1.0p59F);
}

TEST(Trainer, TheScaleChangesNothingButRounding) {
  TrainingRun small(AmpOptions(1, 16));
  TrainingRun large(AmpOptions(1, 256));
  ASSERT_TRUE(small.Go().ok());
  ASSERT_TRUE(large.Go().ok());
  EXPECT_FALSE(large.records[0].skipped);
  EXPECT_NEAR(small.records[0].grad_norm, large.records[0].grad_norm,
              1e-2 * large.records[0].grad_norm);
}

TEST(Trainer, OverflowAtEveryScaleIsAnErrorNotAnEndlessLoop) {
  TrainerOptions options = AmpOptions(1000, 0x1.0p100);
  options.loss_scaler.backoff_factor = 1e-40;
  TrainingRun run(options);
  const absl::Status status = run.Go().status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--precision fp32"));
}

TEST(FixedFlags, NameWhatDecidesTheNumbersAndNothingElse) {
  TrainingRun run(SmallOptions(1));
  ASSERT_TRUE(run.Go().ok());
  const std::vector<FixedFlag>& stored = run.engine.commits.back().fixed;
  const auto flag = [&](const std::string& name) {
    for (const auto& [key, value] : stored) {
      if (key == name) return value;
    }
    return std::string("absent");
  };
  EXPECT_EQ(flag("--lr"), "0.01");
  EXPECT_EQ(flag("--betas"), "0.9,0.95");
  EXPECT_EQ(flag("--threads"), "2");
  EXPECT_THAT(flag("--model"), HasSubstr("num_kv_heads 2"));
  for (const char* name :
       {"--steps", "--checkpoint-activations", "--io", "--seed", "--loss-scale", "--page-bytes"}) {
    EXPECT_EQ(flag(name), "absent") << name;
  }
}

}  // namespace
}  // namespace spillway::trainer
