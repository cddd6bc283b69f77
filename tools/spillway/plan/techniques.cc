// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/techniques.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/step_cost.h"

namespace spillway::command {
namespace {

using trainer::Precision;

// Rests in memory if there is room for all of it, otherwise where the engine finds it best.
absl::Status Offload(std::initializer_list<Role> roles, Question* question) {
  Question resting = *question;
  for (const Role role : roles) resting.placement[static_cast<size_t>(role)] = Tier::kPinned;
  SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(resting));
  for (const Role role : roles) {
    question->placement[static_cast<size_t>(role)] =
        fit[Tier::kPinned].fits() ? std::optional<Tier>(Tier::kPinned) : std::nullopt;
  }
  return absl::OkStatus();
}

// A technique of Spillway's. `apply` changes the question; nothing if it has no effect there.
struct Technique {
  std::string_view key;
  std::string_view moves;  // what it moves off the GPU, "state"; empty: it does something else
  std::string_view title;  // "checkpointing"; empty if it moves something
  absl::Status (*apply)(Question* question);
  bool has_alternative = false;  // the next one takes its place
};

constexpr int64_t kMicroBatchParts = 4;  // what a micro-batch is cut into, at least
constexpr std::string_view kNotMeasured = "not measured here";
constexpr std::string_view kSame = "none: the same bits";

// In the order in which they are put together: the cheap ones first, those that change what is
// computed last.
const Technique kTechniques[] = {
    {"offload_state", "state", "",
     [](Question* question) { return Offload({Role::kMasterWeight, Role::kMoment}, question); }},
    {"micro_batch", "", "smaller micro-batches",
     [](Question* question) {
       trainer::ModelOptions& options = question->options;
       const int64_t windows = options.micro_batch;
       int64_t parts = std::min<int64_t>(windows, kMicroBatchParts);
       while (windows % parts != 0) ++parts;
       options.micro_batch /= parts;
       options.accumulate *= parts;
       return absl::OkStatus();
     }},
    {"offload_gradients", "gradients", "",
     [](Question* question) { return Offload({Role::kGradient}, question); }},
    {"checkpointing", "", "checkpointing",
     [](Question* question) {
       question->options.checkpoint_activations = true;
       return absl::OkStatus();
     }},
    {"offload_activations", "activations", "",
     [](Question* question) { return Offload({Role::kActivation}, question); }},
    {"offload_weights", "weights", "",
     [](Question* question) { return Offload({Role::kParameter}, question); }},
    {"state_8bit", "", "8-bit state",
     [](Question* question) {
       question->options.state_format = StateFormat::k8Bit;
       return absl::OkStatus();
     },
     true},
    {"state_compact", "", "compact state",
     [](Question* question) {
       question->options.state_format = StateFormat::kCompact;
       return absl::OkStatus();
     }},
    {"gradients_16bit", "", "16-bit gradients",
     [](Question* question) {
       question->options.gradient_dtype = trainer::ElementType(question->options.precision);
       return absl::OkStatus();
     }},
};

// Whether the two ask for the same step.
bool IsSame(const Question& a, const Question& b) {
  const auto of = [](const Question& question) {
    const trainer::ModelOptions& options = question.options;
    return std::tuple(question.placement, options.checkpoint_activations, options.gradient_dtype,
                      options.micro_batch, options.state_format);
  };
  return of(a) == of(b);
}

// The recipe with nothing saved: all on the GPU but the state, which the first technique moves.
Question PlainOf(const Question& question) {
  Question plain = question;
  plain.chose_micro_batch = false;
  plain.options.checkpoint_activations = false;
  plain.options.state_format = StateFormat::kF32;
  plain.options.gradient_dtype = DType::kF32;
  plain.placement.fill(Tier::kDevice);
  return plain;
}

// "state and gradients off the GPU, checkpointing".
std::string TitleOf(const std::vector<std::string_view>& keys, const Question& question) {
  std::vector<std::string_view> moved;
  std::string rest;
  for (const Technique& technique : kTechniques) {
    if (std::find(keys.begin(), keys.end(), technique.key) == keys.end()) continue;
    if (!technique.moves.empty()) {
      moved.push_back(technique.moves);
    } else if (technique.key == "micro_batch") {
      const auto windows = static_cast<uint64_t>(question.options.micro_batch);
      absl::StrAppend(&rest, ", micro-batches of ", base::FormatCount(windows, "window"));
    } else {
      absl::StrAppend(&rest, ", ", base::View(technique.title));
    }
  }
  std::string title = moved.size() == 4 ? "all" : "";
  for (size_t i = 0; title != "all" && i < moved.size(); ++i) {
    absl::StrAppend(&title,
                    i == 0                  ? ""
                    : i + 1 == moved.size() ? " and "
                                            : ", ",
                    base::View(moved[i]));
  }
  return absl::StrCat(title, " off the GPU", rest);
}

std::string AccuracyOfAll(const std::vector<std::string_view>& keys) {
  std::string text;
  for (const std::string_view key : keys) {
    const Accuracy accuracy = AccuracyOf(key, true);
    if (accuracy.words == kSame) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", base::View(accuracy.words));
  }
  return text.empty() ? std::string(kSame) : text;
}

// Lists what Spillway does.
class Lister {
 public:
  explicit Lister(const Question& question) : question_(question) {}

  absl::StatusOr<std::vector<TechniqueRow>> List() {
    SPILLWAY_RETURN_IF_ERROR(Add({""}, question_));
    Question base = PlainOf(question_);
    const Technique& first = kTechniques[0];
    SPILLWAY_RETURN_IF_ERROR(first.apply(&base));
    SPILLWAY_RETURN_IF_ERROR(Add({first.key}, base));
    const auto others = std::span(kTechniques).subspan(1);
    for (const Technique& technique : others)
      SPILLWAY_RETURN_IF_ERROR(Apply(technique, {first.key}, base).status());
    Question all = base;
    std::vector<std::string_view> keys = {first.key};
    for (const Technique& technique : others) {
      SPILLWAY_ASSIGN_OR_RETURN(const std::optional<Question> changed, Apply(technique, keys, all));
      if (!changed || technique.has_alternative) continue;
      all = *changed;
      keys.push_back(technique.key);
    }
    SPILLWAY_RETURN_IF_ERROR(TimeRows());
    return std::move(rows_);
  }

 private:
  struct Asked {
    Question question;
    Fit fit;
  };

  // Executes a step of each row that fits, on all cores.
  absl::Status TimeRows() {
    std::vector<absl::Status> failed(rows_.size());
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < rows_.size(); i = next++)
        if (asked_[i].fit.fits()) failed[i] = TimeRow(asked_[i], &rows_[i]);
    };
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : failed) SPILLWAY_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  static absl::Status TimeRow(const Asked& asked, TechniqueRow* row) {
    SPILLWAY_ASSIGN_OR_RETURN(const QuickStep step, QuickStep::Make(asked.question, asked.fit));
    SPILLWAY_ASSIGN_OR_RETURN(const StepCost cost,
                              step.Cost(asked.question, asked.fit, /*with_bound=*/false));
    row->step_seconds = cost.seconds;
    return absl::OkStatus();
  }

  // Adds the row of one more technique. Nothing: it changes nothing, or cannot be had.
  absl::StatusOr<std::optional<Question>> Apply(const Technique& technique,
                                                std::vector<std::string_view> keys,
                                                const Question& to) {
    Question changed = to;
    SPILLWAY_RETURN_IF_ERROR(technique.apply(&changed));
    if (IsSame(changed, to) || !trainer::CheckOptions(changed.options).ok())
      return std::optional<Question>();
    keys.push_back(technique.key);
    SPILLWAY_RETURN_IF_ERROR(Add(std::move(keys), changed));
    return std::optional<Question>(std::move(changed));
  }

  absl::Status Add(std::vector<std::string_view> keys, const Question& question) {
    for (const Asked& before : asked_)
      if (IsSame(before.question, question)) return absl::OkStatus();
    SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(question));
    asked_.push_back({question, fit});
    TechniqueRow row;
    row.accuracy = AccuracyOfAll(keys);
    row.title = keys.front().empty() ? "as asked" : TitleOf(keys, question);
    row.keys = std::move(keys);
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      row.bytes[tier] = static_cast<double>(fit.tiers[tier].needed);
      row.missing[tier] = static_cast<double>(fit.tiers[tier].missing());
    }
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  const Question& question_;
  std::vector<Asked> asked_;  // of each row
  std::vector<TechniqueRow> rows_;
};

TechniqueRow RowOf(const WithoutSpillway& way, const Question& question) {
  TechniqueRow row;
  row.keys = {way.key};
  row.title = way.title;
  row.by_spillway = false;
  row.accuracy = std::string(AccuracyOf(way.key, false).words);
  const auto set = [&](Tier tier, double bytes, double room) {
    row.bytes[static_cast<size_t>(tier)] = bytes;
    row.missing[static_cast<size_t>(tier)] = std::max(0.0, bytes - room);
  };
  set(Tier::kDevice, way.gpu(), RankDeviceBytes(question));
  set(Tier::kPinned, way.host, RankPinnedBytes(question));
  return row;
}

}  // namespace

Accuracy AccuracyOf(std::string_view key, bool by_spillway) {
  struct Entry {
    std::string_view key;
    Accuracy accuracy;
  };
  constexpr std::string_view kLadder = "README.md, of tools/ladder";
  constexpr std::string_view kQuality = "bench/results/state_quality_smollm2.json";
  static constexpr Entry kEntries[] = {
      {"", {"as asked", ""}},
      {"offload_state", {kSame, kLadder}},
      {"offload_gradients", {kSame, kLadder}},
      {"offload_activations", {kSame, kLadder}},
      {"offload_weights", {kSame, kLadder}},
      {"checkpointing", {kSame, kLadder}},
      {"micro_batch", {"another order of sums: loss within 0.01%", kLadder}},
      {"gradients_16bit", {"16-bit gradients: not measured here", ""}},
      {"state_8bit", {"8-bit state: validation loss -0.010%", kQuality}},
      {"state_compact", {"compact state: validation loss +0.024%", kQuality}},
  };
  static constexpr Entry kWays[] = {
      {"fp32", {"none: the reference", ""}},
      {"amp", {"16 bits: loss within 0.1%", kLadder}},
      {"checkpointing", {"16 bits: loss within 0.1%", kLadder}},
  };
  for (const Entry& entry : by_spillway ? std::span<const Entry>(kEntries) : kWays)
    if (entry.key == key) return entry.accuracy;
  return {kNotMeasured, ""};
}

bool TechniqueRow::fits() const {
  return std::all_of(missing.begin(), missing.end(), [](double lacking) { return lacking == 0; });
}

std::vector<std::string> FilesOf(const TechniqueRow& row) {
  std::vector<std::string> files;
  for (const std::string_view key : row.keys) {
    const std::string file(AccuracyOf(key, row.by_spillway).file);
    if (!file.empty() && std::find(files.begin(), files.end(), file) == files.end())
      files.push_back(file);
  }
  return files;
}

double RankDeviceBytes(const Question& question) {
  return static_cast<double>(question.device_bytes() / question.hardware.gpu.count);
}

double RankPinnedBytes(const Question& question) {
  return static_cast<double>(question.pinned_bytes() / question.hardware.gpu.count);
}

bool FitsRank(const WithoutSpillway& way, const Question& question) {
  return RowOf(way, question).fits();
}

std::vector<WithoutSpillway> WithoutSpillwayFor(const Question& question, WithoutOptions options) {
  options.sequence = question.options.sequence;
  options.windows = question.chose_micro_batch ? 1 : question.options.micro_batch;
  if (question.model.config)
    return WaysWithoutSpillway(trainer::Describe(*question.model.config), options);
  trainer::Description counted;
  counted.parameters = question.model.counted->parameters;
  return WaysWithoutSpillway(counted, options);
}

absl::StatusOr<std::vector<TechniqueRow>> ListTechniques(const Question& question,
                                                         const std::vector<WithoutSpillway>& ways) {
  std::vector<TechniqueRow> rows;
  if (question.model.config) {
    SPILLWAY_ASSIGN_OR_RETURN(rows, Lister(question).List());
  }
  for (const WithoutSpillway& way : ways) rows.push_back(RowOf(way, question));
  const auto order = [](const TechniqueRow& row) {
    const double missing = row.missing[static_cast<size_t>(Tier::kDevice)];
    const bool is_unknown = row.accuracy.find(kNotMeasured) != std::string::npos;
    return std::tuple(!row.fits(), !row.step_seconds, row.fits() && is_unknown,
                      row.step_seconds.value_or(0), missing);
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const TechniqueRow& a, const TechniqueRow& b) {
    return order(a) < order(b);
  });
  return rows;
}

}  // namespace spillway::command
