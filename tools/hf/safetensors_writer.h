// SPDX-License-Identifier: Apache-2.0
//
// Writes the weights of a Hugging Face folder as they are produced: the tensors are declared first,
// which fixes the headers and the shards, then their bytes come in pieces, in that order. Files
// appear under their names, whole and synced, only in Finish; until then the folder is as it was.

#ifndef SPILLWAY_TOOLS_HF_SAFETENSORS_WRITER_H_
#define SPILLWAY_TOOLS_HF_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/file.h"
#include "tools/hf/safetensors_header.h"

namespace spillway::hf {

struct TensorDeclaration {
  std::string name;
  TensorDType dtype = TensorDType::kF32;
  std::vector<int64_t> shape;
};

struct SafetensorsWriterOptions {
  // Data of one file. Above it the tensors are cut into shards with an index; a larger tensor has a
  // shard of its own. 5 GB is transformers' habit.
  uint64_t max_shard_bytes = 5'000'000'000;
  // kReplace also removes weights of the other layout, which would hide or contradict the new ones.
  IfExists if_exists = IfExists::kFail;
};

// Thread-compatible.
//
//   auto writer = SafetensorsWriter::Create("out", {{"w", TensorDType::kF32, {2, 3}}}, {});
//   (*writer)->Append(std::as_bytes(std::span(values)));
//   (*writer)->Finish();
class SafetensorsWriter {
 public:
  // The folder must exist. AlreadyExists: it holds weights and the options do not say to replace
  // them. InvalidArgument: a name twice, or a shape whose size overflows.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& folder, std::vector<TensorDeclaration> tensors,
      const SafetensorsWriterOptions& options);

  // The next bytes, little endian, of the tensors in the order declared; a piece may span tensors.
  // InvalidArgument: more than was declared.
  absl::Status Append(std::span<const std::byte> bytes);

  // FailedPrecondition: bytes are missing. Renames the weights, the index last.
  absl::Status Finish();

 private:
  struct Shard {
    std::string file_name;
    std::vector<size_t> tensors;  // in tensors_
    uint64_t data_bytes = 0;
  };

  SafetensorsWriter(std::string folder, std::vector<TensorDeclaration> tensors,
                    const SafetensorsWriterOptions& options);
  void PlanShards();
  absl::Status CheckFolder() const;
  absl::Status OpenShard(size_t shard);
  std::string HeaderJson(const Shard& shard) const;
  std::string IndexJson() const;
  absl::Status RemoveStaleFiles() const;

  const std::string folder_;
  const std::vector<TensorDeclaration> tensors_;
  const SafetensorsWriterOptions options_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<AtomicFile>> files_;  // those begun, by shard; written in order
  uint64_t left_in_shard_ = 0;
};

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_SAFETENSORS_WRITER_H_
