"""tailrace in exllamav3: `tailrace.integrations.exllamav3.sampler.TailraceSampler` for a job.

The module is not imported here, because the data of this package serve without exllamav3.
"""
