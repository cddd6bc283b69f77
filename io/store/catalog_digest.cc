// SPDX-License-Identifier: Apache-2.0

#include "io/store/catalog_digest.h"

#include <array>
#include <bit>
#include <span>

#include "io/checksum.h"

namespace spillway::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "digests are over little-endian integers");

uint64_t HashText(std::string_view text) {
  return Checksum(std::as_bytes(std::span(text.data(), text.size())));
}

template <typename... Integers>
uint64_t HashIntegers(Integers... values) {
  const std::array<uint64_t, sizeof...(values)> words = {uint64_t{values}...};
  return Checksum(std::as_bytes(std::span(words)));
}

}  // namespace

uint64_t TensorDigest(uint64_t catalog_id, const TensorRecord& tensor) {
  return HashIntegers(catalog_id, HashText(tensor.name), HashText(tensor.description),
                      tensor.num_pages);
}

uint64_t PageDigest(uint64_t catalog_id, uint64_t page, const PageRecord& record) {
  return HashIntegers(catalog_id, page, record.extent.device, record.extent.segment,
                      record.extent.offset, record.extent.size_bytes, record.skip_bytes,
                      record.content_bytes, record.checksum);
}

uint64_t CommitDigest(uint64_t number, uint64_t page_bytes, std::string_view user_state) {
  return HashIntegers(number, page_bytes, HashText(user_state));
}

}  // namespace spillway::io
