#include "archive.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <unordered_set>

#include "refusal.hpp"

namespace coilwork_aot {
namespace {

constexpr uint64_t ALIGNMENT = 64, LOCAL_SIZE = 30, CENTRAL_SIZE = 46, END_SIZE = 22, END_64_SIZE = 56, LOCATOR_SIZE = 20;
constexpr uint64_t TAIL_SIZE = END_64_SIZE + LOCATOR_SIZE + END_SIZE;
constexpr uint64_t MOST_RECORDS = 65000;
constexpr uint16_t VERSION = 45, DATE = 0x21, SIZES_64 = 0x0001, PADDING = 0xD935;
constexpr uint32_t MODE = static_cast<uint32_t>(S_IFREG | 0644) << 16;

// Little-endian numbers, one behind the other.
template <class... T>
void pack(std::string& to, T... values) {
  (to.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
}
using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;

template <class T>
T number_at(const char* data) {
  T value;
  memcpy(&value, data, sizeof value);
  return value;
}

std::string encode_local(const Record& record) {
  const uint64_t end = record.header_at + LOCAL_SIZE + record.name.size() + 20 + 4;
  const uint64_t padding = (ALIGNMENT - end % ALIGNMENT) % ALIGNMENT;
  std::string made = "PK\x03\x04";
  pack(made, U16{VERSION}, U16{0}, U16{0}, U16{0}, U16{DATE}, U32{record.crc}, U32{0xFFFFFFFF}, U32{0xFFFFFFFF},
       U16(record.name.size()), U16(24 + padding));
  made += record.name;
  pack(made, U16{SIZES_64}, U16{16}, U64{record.size}, U64{record.size}, U16{PADDING}, U16(padding));
  made.append(padding, '\0');
  return made;
}

std::string encode_central(const Record& record) {
  std::string made = "PK\x01\x02";
  pack(made, U16(0x0300 | VERSION), U16{VERSION}, U16{0}, U16{0}, U16{0}, U16{DATE}, U32{record.crc}, U32{0xFFFFFFFF}, U32{0xFFFFFFFF},
       U16(record.name.size()), U16{28}, U16{0}, U16{0}, U16{0}, U32{MODE}, U32{0xFFFFFFFF});
  made += record.name;
  pack(made, U16{SIZES_64}, U16{24}, U64{record.size}, U64{record.size}, U64{record.header_at});
  return made;
}

std::string encode_end(uint64_t count, uint64_t directory, uint64_t at) {
  std::string made = "PK\x06\x06";
  pack(made, U64{END_64_SIZE - 12}, U16{VERSION}, U16{VERSION}, U32{0}, U32{0}, U64{count}, U64{count}, U64{directory}, U64{at});
  made += "PK\x06\x07";
  pack(made, U32{0}, U64{at + directory}, U32{1});
  made += "PK\x05\x06";
  pack(made, U16{0}, U16{0}, U16{0xFFFF}, U16{0xFFFF}, U32{0xFFFFFFFF}, U32{0xFFFFFFFF}, U16{0});
  return made;
}

// Parts of letters, digits, _ - and, not first, dots, with slashes between.
bool is_name(std::string_view name) {
  bool begins = true;
  for (char c : name) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (begins ? !is_plain : !(is_plain || c == '.' || c == '/')) return false;
    begins = c == '/';
  }
  return !begins;
}

class HeaderReader {
 public:
  HeaderReader(const char* data, uint64_t size, const std::string& path) : data_(data), size_(size), path_(path) {}

  std::vector<Record> read() {
    if (size_ < 4 || memcmp(data_, "PK\x03\x04", 4) != 0) refuse("not-a-package", "it does not begin like an archive");
    read_end();
    std::vector<Record> records = read_directory();
    std::string directory;
    uint64_t expected = 0;
    for (Record& record : records) {
      if (record.header_at != expected) refuse("overlapping-records", "record " + record.name + " is not behind the one before");
      const std::string header = encode_local(record);
      record.data_at = record.header_at + header.size();
      if (record.end() > at_) refuse("oversized-record", "record " + record.name + " reaches beyond the records");
      if (memcmp(data_ + record.header_at, header.data(), header.size()) != 0)
        refuse("damaged-header", "the header of record " + record.name + " is not canonical");
      expected = record.end();
      directory += encode_central(record);
    }
    if (expected != at_) refuse("overlapping-records", "there is a gap behind the last record");
    directory += encode_end(count_, directory.size(), at_);
    if (size_ - at_ != directory.size() || memcmp(data_ + at_, directory.data(), directory.size()) != 0)
      refuse("damaged-header", "the directory is not canonical");
    return records;
  }

 private:
  void read_end() {
    if (size_ < TAIL_SIZE) refuse("truncated", "it ends too early");
    const char* tail = data_ + size_ - TAIL_SIZE;
    if (memcmp(tail, "PK\x06\x06", 4) != 0 || memcmp(data_ + size_ - END_SIZE, "PK\x05\x06", 4) != 0)
      refuse("truncated", "it does not end like a package");
    count_ = number_at<uint64_t>(tail + 32);
    directory_size_ = number_at<uint64_t>(tail + 40);
    at_ = number_at<uint64_t>(tail + 48);
    if (count_ > MOST_RECORDS) refuse("oversized-record", "it says that it has " + std::to_string(count_) + " records");
    const uint64_t room = size_ - TAIL_SIZE;
    if (at_ > room || directory_size_ != room - at_) refuse("truncated", "its directory is not where it says");
  }

  std::vector<Record> read_directory() {
    std::vector<Record> records;
    std::unordered_set<std::string> names;
    uint64_t at = at_;
    const uint64_t end = at_ + directory_size_;
    for (uint64_t k = 0; k < count_; ++k) {
      if (end - at < CENTRAL_SIZE) refuse("truncated", "its directory ends too early");
      const char* entry = data_ + at;
      const uint64_t name_size = number_at<uint16_t>(entry + 28), extra_size = number_at<uint16_t>(entry + 30);
      const uint64_t whole = CENTRAL_SIZE + name_size + extra_size + number_at<uint16_t>(entry + 32);
      if (memcmp(entry, "PK\x01\x02", 4) != 0 || whole > end - at) refuse("damaged-header", "an entry of the directory is damaged");
      at += whole;
      Record record;
      record.name.assign(entry + CENTRAL_SIZE, name_size);
      if (!is_name(record.name)) refuse("unsafe-path", "a record is called otherwise than a plain relative path");
      if (number_at<uint16_t>(entry + 10) || number_at<uint16_t>(entry + 8))
        refuse("compressed-record", "record " + record.name + " is compressed, encrypted or streamed");
      if (!S_ISREG(number_at<uint32_t>(entry + 38) >> 16)) refuse("symlink-record", "record " + record.name + " is no regular file");
      const char* extra = entry + CENTRAL_SIZE + name_size;
      if (extra_size != 28 || number_at<uint16_t>(extra) != SIZES_64 || number_at<uint16_t>(extra + 2) != 24)
        refuse("damaged-header", "record " + record.name + " has no sizes of 64 bits");
      record.size = number_at<uint64_t>(extra + 4);
      record.header_at = number_at<uint64_t>(extra + 20);
      record.crc = number_at<uint32_t>(entry + 16);
      if (record.size != number_at<uint64_t>(extra + 12)) refuse("compressed-record", "record " + record.name + " unpacks to another size");
      if (record.header_at > size_ || record.size > size_ - record.header_at)
        refuse("oversized-record", "record " + record.name + " is larger than the file");
      if (!names.insert(record.name).second) refuse("duplicate-record", "there are two records " + record.name);
      records.push_back(std::move(record));
    }
    if (at != end) refuse("damaged-header", "something follows the last entry of the directory");
    return records;
  }

  [[noreturn]] void refuse(const char* code, const std::string& reason) const {
    refuse_package(code, path_ + " is no intact package: " + reason);
  }

  const char* data_;
  uint64_t size_;
  std::string path_;
  uint64_t at_ = 0, directory_size_ = 0, count_ = 0;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // not to wait for who writes to a pipe
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat facts {};
  std::string reason;
  if (file < 0 || fstat(file, &facts) != 0) {
    reason = strerror(errno);
  } else if (!S_ISREG(facts.st_mode) || facts.st_size <= 0) {
    reason = "it is no regular file, or empty";
  } else {
    size_ = static_cast<size_t>(facts.st_size);
    void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED)
      reason = strerror(errno);
    else
      data_ = static_cast<char*>(mapped);
  }
  if (file >= 0) close(file);
  if (!data_) refuse_package("unreadable", path + " cannot be read: " + reason);
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
}

const Record* Archive::find(const std::string& name) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? nullptr : &records[found->second];
}

Archive read_archive(const std::string& path) {
  Archive made;
  made.file = std::make_shared<MappedFile>(path);
  made.records = HeaderReader(made.file->data(), made.file->size(), path).read();
  for (size_t k = 0; k < made.records.size(); ++k) made.numbers.emplace(made.records[k].name, k);
  return made;
}

}  // namespace coilwork_aot
