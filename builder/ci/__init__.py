"""Workflows of GitHub and GitLab that update locks every month, and build, test and publish images."""
