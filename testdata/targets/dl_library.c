/* The library that dl loads. */
__attribute__((noipa)) unsigned long library_work(long key, unsigned long sum)
{
	return sum * 31 + key;
}
