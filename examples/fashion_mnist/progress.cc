#include "examples/fashion_mnist/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fashion_mnist {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(10);
constexpr int kTextColumns = 60;  // of a line with a bar, the bar not counted

int BarColumns(std::FILE* stream) {
  winsize size = {};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size.ws_col = 80;
  return std::min(size.ws_col - kTextColumns, 40);
}

}  // namespace

Progress::Progress(std::FILE* stream) : stream_(stream), terminal_(stream != nullptr && isatty(fileno(stream)) != 0) {}

void Progress::BeginEpoch(int epoch, int epochs, int64_t steps) {
  epoch_name_ = absl::StrCat("epoch ", epoch + 1, "/", epochs);
  steps_ = steps;
  epoch_begin_ = Clock::now();
  next_draw_ = epoch_begin_ + (terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kLineInterval));
}

void Progress::Step(int64_t step, int64_t images, double loss) {
  const Clock::time_point now = Clock::now();
  images_ += images;
  this_epoch_ = now - epoch_begin_;
  if (stream_ == nullptr || now < next_draw_) return;
  next_draw_ = now + (terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kLineInterval));
  Draw(step, loss);
}

void Progress::Draw(int64_t step, double loss) {
  const double done = static_cast<double>(step + 1) / static_cast<double>(steps_);
  const std::string numbers =
      absl::StrFormat("%3.0f %%  %7.0f images/s  loss %.4f", 100 * done, images_per_second(), loss);
  if (!terminal_) {
    Print(absl::StrCat(epoch_name_, "  ", numbers));
    return;
  }
  std::string bar;
  if (const int columns = BarColumns(stream_); columns >= 5) {
    const int filled = static_cast<int>(done * columns);
    bar = absl::StrCat("[", std::string(filled, '='), std::string(columns - filled, ' '), "] ");
  }
  // Back to the line's beginning, and after the text clear what an earlier, longer one left.
  absl::FPrintF(stream_, "\r%s %s%s\033[K", epoch_name_, bar, numbers);
  std::fflush(stream_);
}

double Progress::images_per_second() const {
  const double seconds = std::chrono::duration<double>(earlier_epochs_ + this_epoch_).count();
  return seconds > 0 ? static_cast<double>(images_) / seconds : 0;
}

void Progress::EndEpoch() {
  earlier_epochs_ += this_epoch_;
  this_epoch_ = {};
}

void Progress::Print(absl::string_view line) {
  if (stream_ == nullptr) return;
  absl::FPrintF(stream_, "%s%s\n", terminal_ ? "\r\033[K" : "", line);
  std::fflush(stream_);
}

}  // namespace fashion_mnist
