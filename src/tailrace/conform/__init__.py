"""Laws that any OpenAI-compatible server should keep, and a runner that judges a server by them from outside.

It sends requests and reads answers. It does not know tailrace's engine, sampler or server: it imports none of them, nor
torch.
"""
