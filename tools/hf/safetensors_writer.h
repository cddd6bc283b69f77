// SPDX-License-Identifier: Apache-2.0
//
// Writes the weights of a Hugging Face folder as they are produced. The tensors are declared first,
// which determines the headers and the shards; then their bytes are appended in pieces, in the same
// order. Files appear under their names only in Finish, complete and synced. Until then only
// temporary files are added to the folder.

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
  // Maximum data bytes of one file. If there is more, the tensors are divided into shards with an
  // index; a larger tensor gets a shard of its own. 5 GB is the usual limit of transformers.
  uint64_t max_shard_bytes = 5'000'000'000;
  // kReplace also removes earlier weight files that are not overwritten, because they would hide or
  // contradict the new ones.
  IfExists if_exists = IfExists::kFail;
};

// Thread-compatible.
//
//   auto writer = SafetensorsWriter::Create("out", {{"w", TensorDType::kF32, {2, 3}}}, {});
//   (*writer)->Append(std::as_bytes(std::span(values)));
//   (*writer)->Finish();
class SafetensorsWriter {
 public:
  // Tensors lie in the file in the order declared. So that each is aligned to its type, a caller
  // that mixes types declares those of wider types first. The folder must exist. AlreadyExists: it
  // holds weights and the options do not say to replace them. InvalidArgument: a name occurs twice,
  // or the size of a shape overflows.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& folder, std::vector<TensorDeclaration> tensors,
      const SafetensorsWriterOptions& options);

  // Appends the next bytes, little endian, of the tensors in the order declared. A piece may span
  // tensors. InvalidArgument: there are more bytes than were declared.
  absl::Status Append(std::span<const std::byte> bytes);

  // Renames the weight files, the index last. FailedPrecondition: bytes are missing.
  absl::Status Finish();

 private:
  struct Shard {
    std::string file_name;
    std::vector<size_t> tensors;  // indices in tensors_
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
  std::vector<std::unique_ptr<AtomicFile>> files_;  // files begun so far, in shard order
  uint64_t left_in_shard_ = 0;
};

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_SAFETENSORS_WRITER_H_
