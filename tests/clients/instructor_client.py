"""Checks of a server with Instructor, which asks until an answer fits a type: `python instructor_client.py URL`."""

import logging
import sys

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)


CLIENT = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
FIELDS = {"model": "weft/demo", "messages": [{"role": "user", "content": "Who is it?"}], "response_model": Person,
          "max_retries": 0}
logging.getLogger("instructor").setLevel(logging.CRITICAL)  # it logs each refusal
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
    if mode != instructor.Mode.JSON:  # the format of any object, of which the demo model makes no person
        person = instructor.from_openai(CLIENT, mode=mode).create(temperature=0, **FIELDS)
        assert isinstance(person, Person), mode
    try:
        instructor.from_openai(CLIENT, mode=mode).create(temperature=-1, **FIELDS)
    except InstructorRetryException as error:
        message = str(error)
    assert "`temperature` must be at least 0, got -1.0" in message, mode
    sys.stdout.write(f"instructor: {mode}\n")
