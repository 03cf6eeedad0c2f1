/* The library that dl loads. */
__attribute__((noipa)) unsigned long library_work(long key, unsigned long sum)
{
	return sum * 31 + key;
}

/* Nobody calls it. */
__attribute__((noipa)) void library_endless(volatile long *count)
{
	for (;;)
		++*count;
}
