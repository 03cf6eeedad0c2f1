// Formats integers by C++ streams, as an oracle for conversions. Each line of
// the input is: left plus alt zero width length verb signed value
// and each line of the output is the result, in hexadecimal bytes.
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

template <typename Narrow, typename Wide> Wide cut(uint64_t v) { return static_cast<Wide>(static_cast<Narrow>(v)); }

template <typename Int, typename Short, typename Char, typename Long>
Long as(const std::string &length, uint64_t v)
{
  if (length == "hh")
    return cut<Char, Long>(v);
  if (length == "h")
    return cut<Short, Long>(v);
  if (length == "l" || length == "ll" || length == "j" || length == "z" || length == "t")
    return static_cast<Long>(v);
  return cut<Int, Long>(v);
}

int main()
{
  bool left, plus, alt, zero, isSigned;
  int width;
  std::string length, verb;
  uint64_t v;
  while (std::cin >> left >> plus >> alt >> zero >> width >> length >> verb >> isSigned >> v) {
    std::ostringstream s;
    s << (left ? std::left : std::right);
    if (width > 0)
      s << std::setw(width);
    if (zero)
      s << std::setfill('0');
    if (verb == "o")
      s << std::oct;
    if (verb == "x")
      s << std::hex << std::nouppercase;
    if (verb == "X")
      s << std::hex << std::uppercase;
    if (alt)
      s << std::showbase;
    if (plus)
      s << std::showpos;
    if (verb == "d" || verb == "i")
      s << as<int, short, signed char, long long>(length, v);
    else if (verb == "c")
      s << static_cast<char>(v);
    else if (verb == "p")
      s << reinterpret_cast<void *>(v);
    else if (verb == "s" && isSigned)
      s << static_cast<int64_t>(v);
    else if (verb == "s")
      s << v;
    else
      s << as<unsigned, unsigned short, unsigned char, unsigned long>(length, v);
    for (unsigned char c : s.str())
      std::cout << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(c);
    std::cout << "\n";
  }
}
