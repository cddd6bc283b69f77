// SPDX-License-Identifier: Apache-2.0
//
// Reads many pages only to verify them: reads extents through an I/O engine, many at once, and
// compares each page with its checksum.

#ifndef SPILLWAY_IO_STORE_PAGE_VERIFIER_H_
#define SPILLWAY_IO_STORE_PAGE_VERIFIER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "io/io_engine.h"
#include "io/store/store.h"

namespace spillway::io {

// Externally synchronised. `io` must outlive it, and nothing else may use `io` meanwhile.
//
//   PageVerifier verifier(io, [](const Extent& extent, const PageVerifier::Page& page,
//                                const absl::Status& why) { ... });
//   for (...) verifier.Add(file, extent, {{.tensor = 7, .page = 1, .content_bytes = 4096, ...}});
//   verifier.Finish();
class PageVerifier {
 public:
  // A page in an extent. The first four fields identify the page to the caller.
  struct Page {
    uint64_t tensor = 0;
    uint64_t page = 0;
    uint64_t born = 0;
    uint64_t died = 0;
    uint32_t skip_bytes = 0;  // offset of the page in the extent
    uint32_t content_bytes = 0;
    uint64_t checksum = 0;
  };
  // Called for each page whose bytes are not what was written (DataLoss) or that the device cannot
  // read (Unavailable), in both cases after a second try.
  using OnBad = std::function<void(const Extent&, const Page&, const absl::Status& why)>;

  PageVerifier(IoEngine* io, OnBad on_bad) : io_(io), on_bad_(std::move(on_bad)) {}
  PageVerifier(const PageVerifier&) = delete;
  PageVerifier& operator=(const PageVerifier&) = delete;
  // Waits for reads in flight.
  ~PageVerifier() { Finish().IgnoreError(); }

  // Submits a read of the extent; first waits while too much is in flight. The file must stay valid
  // until Finish, which waits for all reads. Both return the first error that says nothing about
  // the pages, such as a lack of memory or an I/O engine that serves no more requests.
  absl::Status Add(FileId file, const Extent& extent, std::vector<Page> pages);
  absl::Status Finish();
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  struct Read {
    IoRequest request;
    Extent extent;
    std::vector<Page> pages;
    Buffer buffer;
    bool is_second = false;
  };

  Buffer TakeBuffer(uint32_t size_bytes);
  void Reap();
  void OnRead(const IoCompletion& completion);

  IoEngine* const io_;
  const OnBad on_bad_;
  std::map<uint64_t, Read> reads_;  // in flight, by the tags of their requests
  std::multimap<uint32_t, Buffer> spare_;
  absl::Status status_;
  uint64_t next_ = 0;
  uint64_t under_way_bytes_ = 0;
  uint64_t read_bytes_ = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PAGE_VERIFIER_H_
