// Records of one kind, used again and again: taking one allocates only when more are in use than ever before.

#ifndef TRANSPORT_OFI_RECORD_POOL_H_
#define TRANSPORT_OFI_RECORD_POOL_H_

#include <deque>

namespace lockstep {

// `Record` has a member `Record* next`. Externally synchronised.
template <typename Record>
class OfiRecordPool {
 public:
  Record* Take() {
    Record* record = free_;
    if (record == nullptr) return &records_.emplace_back();
    free_ = record->next;
    *record = Record();
    return record;
  }
  void Give(Record* record) {
    record->next = free_;
    free_ = record;
  }

 private:
  std::deque<Record> records_;
  Record* free_ = nullptr;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_RECORD_POOL_H_
