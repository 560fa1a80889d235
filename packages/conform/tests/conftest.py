"""The plug-ins of the repository that these tests use: few of many cases, and runs that end in time."""

pytest_plugins = ["budget", "few"]
