// SPDX-License-Identifier: Apache-2.0
//
// Which request goes to the kernel next. Pure bookkeeping: the engines tell it what came and what
// ended, and it opens no file and knows no clock.
//
// The equation. A device works on all that it was given, so a read that arrives waits for what is
// in flight there:
//
//   delay = reads in flight x bytes / read rate + writes in flight x bytes / write rate.
//
// Nothing recalls a write that was issued, but no write need be added while a read is about. So for
// each device, with r reads and w writes in flight:
//
//   a read goes if   r < read
//   a write goes if  w < write, and, while any read waits or is in flight there, w < mixed_write
//
// A queue that was full takes no more until a quarter of it has ended: handing requests to a device
// one at a time costs a doorbell each (on a virtual disk an exit of the machine, some 20 us), and
// three quarters of a queue keep the device as busy.
//
// Reads go before writes, each in the order in which they came. After the writes in flight when it
// came, a read shares the device with mixed_write writes at most, however much write-back waits.

#ifndef SPILLWAY_IO_REQUEST_QUEUE_H_
#define SPILLWAY_IO_REQUEST_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "io/io_engine.h"
#include "io/transfer.h"

namespace spillway::io {

// The depths with each in 1 to `most`.
QueueDepths ClampDepths(const QueueDepths& depths, int most);

// Thread-compatible.
class RequestQueue {
 public:
  // `depths` is every device's until SetDepths. `max_in_flight` bounds all devices together; writes
  // leave half of it to reads.
  RequestQueue(const QueueDepths& depths, int max_in_flight);

  void SetDepths(uint16_t device, const QueueDepths& depths);

  void Add(const Transfer& transfer);
  // The next one to issue, which counts as in flight until Ended; none: nothing may go now.
  std::optional<Transfer> Take();
  // One that Take gave is no longer with the kernel.
  void Ended(const Transfer& transfer);
  // Empties the queue of what waits: it will never be issued.
  std::vector<Transfer> TakeWaiting();

  bool has_waiting() const { return num_waiting_ > 0; }
  int in_flight() const { return num_in_flight_[0] + num_in_flight_[1]; }

 private:
  struct Device {
    QueueDepths depths;
    std::deque<Transfer> waiting[2];  // by IoOp
    int in_flight[2] = {0, 0};
    bool was_full[2] = {false, false};  // and a quarter has not ended since
  };

  Device& MakeDevice(uint16_t device);
  bool MayGo(Device& device, IoOp op) const;
  static bool HasPlace(Device& device, IoOp op, int depth);

  const QueueDepths default_depths_;
  const int max_in_flight_;
  std::vector<Device> devices_;
  size_t turn_ = 0;  // of the device that is asked first
  size_t num_waiting_ = 0;
  int num_in_flight_[2] = {0, 0};  // by IoOp
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_REQUEST_QUEUE_H_
